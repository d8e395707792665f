# SPDX-License-Identifier: Apache-2.0
"""Prompts given as embeddings: what is accepted, and what the core makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trnport.core.engine.embeds import PromptEmbeds

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import NewRequestData

SENTINEL = 0
"""Stands for a token that has no id, as in vLLM."""


def prompt_tokens(new: NewRequestData) -> list[int]:
    """One id for each position of a prompt.

    Positions of embeddings get a valid id, since the one that vLLM puts there to mark them can
    lie outside the vocabulary.
    """
    if new.prompt_embeds is None:
        return list(new.prompt_token_ids or ())
    mask = new.prompt_is_token_ids
    if new.prompt_token_ids is None or mask is None:
        return [SENTINEL] * new.prompt_len
    pairs = zip(new.prompt_token_ids, mask, strict=True)
    return [token if is_id else SENTINEL for token, is_id in pairs]


def known_tokens(new: NewRequestData) -> list[int]:
    """The ids of a prompt that mean tokens, which penalties count."""
    if new.prompt_embeds is None:
        return list(new.prompt_token_ids or ())
    mask = new.prompt_is_token_ids or ()
    return [t for t, is_id in zip(prompt_tokens(new), mask, strict=False) if is_id]


def prompt_embeds(new: NewRequestData) -> PromptEmbeds | None:
    """A request's embeddings; without a mask they stand for the whole prompt."""
    if new.prompt_embeds is None:
        return None
    mask = new.prompt_is_token_ids
    return PromptEmbeds(
        new.prompt_embeds, None if mask is None else torch.tensor(mask, dtype=torch.bool)
    )


def embeds_problem(
    engine_input: Any, hidden_size: int | None, vocab_size: int | None
) -> str | None:
    """What is wrong with a prompt of type "embeds", beyond what vLLM checks; None if nothing.

    Args:
        engine_input: vLLM's processed prompt.
        hidden_size: The model's; None when unknown.
        vocab_size: The model's; None when unknown.
    """
    embeds = engine_input["prompt_embeds"]
    if embeds.layout != torch.strided or not embeds.is_floating_point():
        return f"prompt_embeds must be a dense floating tensor, not {embeds.dtype} {embeds.layout}"
    if hidden_size is not None and embeds.shape[-1] != hidden_size:
        return (
            f"prompt_embeds of shape {tuple(embeds.shape)} do not fit the model; the last "
            f"dimension must be its hidden size, {hidden_size}"
        )
    ids, mask = engine_input.get("prompt_token_ids"), engine_input.get("is_token_ids")
    if ids is not None and len(ids) != embeds.shape[0]:
        return (
            f"prompt_token_ids has {len(ids)} entries and prompt_embeds {embeds.shape[0]}; give "
            "as many"
        )
    tokens = [t for t, is_id in zip(ids or (), mask or (), strict=False) if is_id]
    bad = next((t for t in tokens if not 0 <= t < (vocab_size or t + 1)), None)
    if bad is not None:
        return f"token id {bad} beside prompt_embeds is outside the vocabulary of {vocab_size}"
    return None
