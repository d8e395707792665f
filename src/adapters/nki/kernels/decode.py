# SPDX-License-Identifier: Apache-2.0
"""Attention of one new token per row over that row's paged cache."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.slots import broadcast_scalar, cached_rows, chunk_size, piece_size
from trnport.adapters.nki.kernels.softmax import (
    begin,
    begin_with_sink,
    finish,
    scores,
    turn,
    update,
)
from trnport.adapters.nki.kernels.sources import cached_mask, gathered_chunk
from trnport.adapters.nki.kernels.tiles import load, shares
from trnport.adapters.nki.nki import nisa, nl


def decode_attention(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    positions: Any,
    sinks: Any,
    heads: int,
    block_size: int,
    scale: float,
    window: int,
    has_sinks: bool,
) -> Any:
    """Row b reads positions 0 to ``positions[b]``, or the last ``window`` of them.

    Args:
        q: ``[B, Hq, D]``.
        k_cache: ``[N * Hk * S, D]``.
        v_cache: Like ``k_cache``.
        block_table: ``[B, M]`` int32; -1 owns nothing.
        positions: ``[B, 1]`` int32.
        sinks: ``[Hq, 1]``, or None.
        heads: Hk.
        block_size: S.
        scale: Multiplies the scores, above 0.
        window: Positions that a query sees, itself included; 0 for all.
        has_sinks: Whether there are sinks.

    Returns:
        ``[B, Hq, D]``; zeros for a row that owns no block.
    """
    batch, q_heads, dim = q.shape
    group = q_heads // heads
    out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    total = block_table.shape[1] * block_size
    step = chunk_size(block_size)
    my_heads, my_rows = shares(heads, batch)
    for b in my_rows:
        newest = broadcast_scalar(positions[b : b + 1, :], 0.0)
        oldest = broadcast_scalar(positions[b : b + 1, :], -float(window or 2**24))
        rows = cached_rows(block_table, b, heads, block_size, newest, oldest)
        masks = []
        for start in range(0, total, step):
            count = min(step, total - start)
            reach = (newest[0:group, :], oldest[0:group, :])
            masks.append(cached_mask(block_table, b, start, count, block_size, reach))
        tile = load(q[b, :, :], (q_heads, dim), q.dtype)
        queries = turn((tile,), dim)
        for h in my_heads:
            first = h * group
            if has_sinks:
                state = begin_with_sink(sinks[first : first + group, :], scale, group, dim)
            else:
                state = begin(group, dim)
            for c in range(len(masks)):
                count = masks[c].shape[1]
                where = (c * step // piece_size(block_size), count)
                keys, values = gathered_chunk(
                    k_cache, v_cache, rows, where, h * block_size * dim, q.dtype
                )
                raw = scores(queries[:, :, first : first + group], keys, dim)
                state = update(state, raw, masks[c], values, scale)
            nisa.dma_copy(dst=out[b, first : first + group, :], src=finish(state, q.dtype))
    return out
