# SPDX-License-Identifier: Apache-2.0
"""Attention of a chunk with several requests, by operators that know one request at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from trnport.core.ports.kernels import CachedPrefix, Kernels


def one_by_one(
    kernels: Kernels,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    prefix: CachedPrefix | None,
    **options: Any,
) -> Tensor:
    """Move each request's rows to the front, attend, and move them back.

    Shapes do not depend on how many rows a request has, so this compiles as one graph; it takes
    B times the work of one request with T rows.

    Args:
        kernels: Supplies ``prefill_attention`` and ``prefill_attention_with_prior``.
        q: ``[T, Hq, D]``.
        k: ``[T, Hk, D]``.
        v: Like ``k``.
        query_start_loc: ``[B + 1]`` int32.
        prefix: As in :meth:`Kernels.packed_prefill_attention`.
        options: Keywords of both operators.

    Returns:
        ``[T, Hq, D]``, zeros for padding rows.
    """
    rows = torch.arange(q.shape[0], device=q.device)
    result = torch.zeros_like(q)
    for request in range(query_start_loc.shape[0] - 1):
        start, end = query_start_loc[request], query_start_loc[request + 1]
        to_front = (rows + start).clamp(max=q.shape[0] - 1)
        own_q, own_k, own_v = (x.index_select(0, to_front) for x in (q, k, v))
        valid = rows < end - start
        if prefix is None:
            out = kernels.prefill_attention(own_q, own_k, own_v, valid, **options)
        else:
            this = slice(request, request + 1)
            out = kernels.prefill_attention_with_prior(
                own_q, own_k, own_v, valid, prefix.k_cache, prefix.v_cache,
                prefix.block_table[this], prefix.cached_seq_len[this], **options,
            )  # fmt: skip
        back = out.index_select(0, (rows - start).clamp(min=0))
        mine = (rows >= start) & (rows < end)
        result = torch.where(mine[:, None, None], back, result)
    return result
