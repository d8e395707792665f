# SPDX-License-Identifier: Apache-2.0
"""The tensors of one step, as the engine builds them and a model reads them."""

from __future__ import annotations

from typing import NamedTuple

import attrs
import torch
from torch import Tensor


@attrs.frozen(eq=False)
class AttentionMetadata:
    """What an attention layer needs beside its activations.

    T is the padded token count and B the padded row count: in decode one row for each token, in
    prefill one for each prompt that a program takes. Integers are part of a program's signature,
    tensors are not.

    Attributes:
        block_table_tensor: ``[B, M]`` int32, unowned entries -1.
        slot_mapping: ``[T]`` int64, padding -1.
        cached_seq_len: ``[B, 1]`` int32 in prefill, the tokens of each row that are cached
            already, padding 0. ``[1, 1]`` in decode, the largest number of any row.
        seq_lens: ``[B]`` int32, tokens of each row known so far, prompt included. Only RoPE
            types whose frequencies depend on the sequence length read it. Padding 1.
        max_query_len: Padded tokens per row.
        block_size: Positions per cache block.
        max_blocks_per_seq: M.
        decode_token_threshold: Largest query length that takes the decode path.
        kv_segment_size: 0 when no row has a cached prefix to attend to, else T.
        swa_kv_pos_offset: ``[B]`` int32, position of the first column of a sliding-window
            layer's table, which holds the window's blocks alone; zeros otherwise.
        query_start_loc: ``[B + 1]`` int32 in prefill programs that take several prompts: row b's
            tokens are those from ``query_start_loc[b]`` to, but without,
            ``query_start_loc[b + 1]``. Behind the last one is padding. None in all others.
    """

    block_table_tensor: Tensor
    slot_mapping: Tensor
    cached_seq_len: Tensor
    seq_lens: Tensor
    max_query_len: int
    block_size: int
    max_blocks_per_seq: int
    decode_token_threshold: int
    kv_segment_size: int
    swa_kv_pos_offset: Tensor
    query_start_loc: Tensor | None = None

    @property
    def is_decode(self) -> bool:
        """Whether the step runs the decode path."""
        return self.max_query_len <= self.decode_token_threshold

    @property
    def token_seq_lens(self) -> Tensor:
        """``seq_lens`` of each token's row, ``[T]`` int32; ``[1]`` if there is one row only."""
        if self.query_start_loc is None:
            return self.seq_lens
        tokens = torch.arange(self.slot_mapping.shape[0], device=self.seq_lens.device)
        row = (tokens[:, None] >= self.query_start_loc[1:]).sum(dim=1)
        return self.seq_lens[row.clamp(max=self.seq_lens.shape[0] - 1)]


class SamplingInputs(NamedTuple):
    """How a program samples each row.

    Attributes:
        sampler_params: ``[B, 3]`` fp32: top_k from 1 to V, top_p above 0 up to 1, and the
            temperature, where 0 is greedy. Padding 1, 1, 0.
        random_keys: ``[B]`` int64, the key of each row's noise. Padding 0.
    """

    sampler_params: Tensor
    random_keys: Tensor


@attrs.frozen(eq=False)
class StepInput:
    """One padded model call.

    Attributes:
        name: Program name, such as "prefill_s128" or "decode_b4_ctx256".
        input_ids: ``[T]`` int64, padding 0.
        positions: ``[T]`` int32; prefill padding repeats the last real position, decode
            padding is 0.
        attn_metadata: Layer name to metadata.
        sampling_positions: ``[B]`` int64, rows of the hidden states to compute logits for.
        return_hidden_states: Whether the program returns the hidden states of all rows.
        inputs_embeds: ``[T, hidden_size]`` embeddings that requests brought along, in the
            model's dtype; None where the engine takes none.
        is_token_ids: ``[T]`` bool, False where a row of ``inputs_embeds`` takes the place of
            the embedding of ``input_ids``; None together with ``inputs_embeds``.
        sampling: How to sample these rows; None when programs do not, or are all greedy.
        logit_mask: ``[B, V]`` bool, False for forbidden tokens; None when programs take none.
    """

    name: str
    input_ids: Tensor
    positions: Tensor
    attn_metadata: dict[str, AttentionMetadata]
    sampling_positions: Tensor
    return_hidden_states: bool = False
    inputs_embeds: Tensor | None = None
    is_token_ids: Tensor | None = None
    sampling: SamplingInputs | None = None
    logit_mask: Tensor | None = None

    def model_kwargs(self) -> dict[str, object]:
        """Arguments of ``model.forward``; every keyword is always present."""
        return {
            "input_ids": self.input_ids,
            "positions": self.positions,
            "attn_metadata": self.attn_metadata,
            "sampling_positions": self.sampling_positions,
            "sampling_params": self.sampling,
            "spec_decode_metadata": None,
            "logit_mask": self.logit_mask,
            "rank": None,
            "inputs_embeds": self.inputs_embeds,
            "is_token_ids": self.is_token_ids,
            "return_hidden_states": self.return_hidden_states,
        }


class ModelOutput(NamedTuple):
    """What a model returns; a tuple, because compilers can build one inside a program.

    Attributes:
        logits: ``[B, vocab_size]`` in the model's dtype, gathered over ranks; None when the
            program samples, or the model has no LM head.
        token_ids: ``[B]`` int64 when the program samples, else None.
        aux_hidden_states: Extra hidden states for a drafter, else None.
        hidden_states: ``[T, hidden_size]`` of all rows behind the last norm, what the LM head
            reads, on every rank; None unless the step asks for them.
    """

    logits: Tensor | None = None
    token_ids: Tensor | None = None
    aux_hidden_states: tuple[Tensor, ...] | None = None
    hidden_states: Tensor | None = None
