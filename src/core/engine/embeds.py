# SPDX-License-Identifier: Apache-2.0
"""Prompts given as embeddings, and the tensors that carry them into a program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import attrs
import torch
from torch import Tensor

from trnport.core.engine.features import EmbedsSpec


@attrs.frozen(eq=False)
class PromptEmbeds:
    """Embeddings of a prompt's first n positions.

    Attributes:
        values: ``[n, hidden_size]``, any floating dtype.
        is_token_ids: ``[n]`` bool, True where the token id counts and not the embedding; None
            when no token id does.
    """

    values: Tensor
    is_token_ids: Tensor | None = None

    @property
    def end(self) -> int:
        """n; later positions are token ids."""
        return self.values.shape[0]


class EmbedsChunk(NamedTuple):
    """The part of a step that belongs to one request.

    Attributes:
        given: The request's embeddings; None for token ids throughout.
        start: Position of the request's first token in the step.
        num_tokens: Its tokens in the step.
    """

    given: PromptEmbeds | None
    start: int
    num_tokens: int


def step_embeds(
    spec: EmbedsSpec | None, rows: int, device: torch.device, chunks: Iterable[EmbedsChunk] = ()
) -> tuple[Tensor | None, Tensor | None]:
    """The step's ``inputs_embeds`` and ``is_token_ids``.

    Args:
        spec: Their shape; None where the engine takes no embeddings.
        rows: Padded rows of the step.
        device: Where the tensors go.
        chunks: Whose rows these are, one request after the other; the rest has token ids.

    Returns:
        ``[rows, hidden_size]`` and ``[rows]`` bool, or (None, None) without a ``spec``.
    """
    if spec is None:
        return None, None
    embeds = torch.zeros(rows, spec.hidden_size, dtype=spec.dtype)
    is_token_ids = torch.ones(rows, dtype=torch.bool)
    first = 0
    for given, start, count in chunks:
        if given is not None:
            end = min(start + count, given.end)
            used = slice(first, first + max(0, end - start))
            embeds[used] = given.values[start:end]
            is_token_ids[used] = False
            if given.is_token_ids is not None:
                is_token_ids[used] = given.is_token_ids[start:end]
        first += count
    return embeds.to(device), is_token_ids.to(device)
