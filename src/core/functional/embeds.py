# SPDX-License-Identifier: Apache-2.0
"""Embeddings that a request brings along in place of token ids."""

from __future__ import annotations

import torch
from torch import Tensor

from trnport.core.metadata import AttentionMetadata
from trnport.core.parallel.group import Group


def merge_prompt_embeds(
    h: Tensor,
    inputs_embeds: Tensor | None,
    is_token_ids: Tensor | None,
    tp: Group,
    metadata: AttentionMetadata,
) -> Tensor:
    """Replace looked-up embeddings by given ones.

    Args:
        h: Embeddings of the token ids: this rank's ``[T/tp, H]`` in prefill (sequence
            parallel), ``[B, H]`` in decode.
        inputs_embeds: ``[T, H]`` given embeddings, the same on every rank; None when the
            engine takes none.
        is_token_ids: ``[T]`` bool, True where ``h`` stands; None with ``inputs_embeds``.
        tp: The tensor-parallel group.
        metadata: Tells the phase.

    Returns:
        As ``h``, in its dtype. Rows of ``inputs_embeds`` that are not used may hold anything,
        NaN included.
    """
    if inputs_embeds is None or is_token_ids is None:
        return h
    if not metadata.is_decode:
        first, share = tp.rank_in_group * h.shape[0], h.shape[0]
        inputs_embeds = inputs_embeds.narrow(0, first, share)
        is_token_ids = is_token_ids.narrow(0, first, share)
    return torch.where(is_token_ids[:, None], h, inputs_embeds.to(h.dtype))
