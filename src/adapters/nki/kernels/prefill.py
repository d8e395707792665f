# SPDX-License-Identifier: Apache-2.0
"""Causal attention of one request's chunk, over itself and over a cached prefix."""

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
from trnport.adapters.nki.kernels.sources import cached_mask, gathered_chunk, own_mask, own_rows
from trnport.adapters.nki.kernels.tiles import BANK, PARTITIONS, load, shares, tiles_of
from trnport.adapters.nki.nki import nisa, nl

FAR = 2**24
"""Reach without a window; every position is below it."""


def prefill_attention(
    q: Any,
    k: Any,
    v: Any,
    valid: Any,
    sinks: Any,
    heads: int,
    scale: float,
    window: int,
    has_sinks: bool,
) -> Any:
    """Attention of a first chunk over itself.

    Args:
        q: ``[T, Hq, D]``.
        k: ``[T * Hk, D]``.
        v: Like ``k``.
        valid: ``[T]`` uint8; a row of 0 is never read as a key.
        sinks: ``[Hq, 1]``, or None.
        heads: Hk.
        scale: Multiplies the scores, above 0.
        window: Keys that a query sees, itself included; 0 for all.
        has_sinks: Whether there are sinks.

    Returns:
        ``[T, Hq, D]``.
    """
    total, dim = q.shape[0], q.shape[2]
    out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    rows = own_rows(valid, heads)
    my_heads, my_tiles = shares(heads, tiles_of(total, PARTITIONS))
    for h in my_heads:
        own = own_chunks(k, v, rows, total, h * dim, q.dtype)
        for tile in my_tiles:
            start = tile * PARTITIONS
            reach = own_reach(start, min(PARTITIONS, total - start), window)
            chunks, masks = own_views(own, valid, start, reach, window)
            write_heads(q, out, chunks, masks, sinks, (start, h, heads), scale, has_sinks)
        own, chunks = [], []  # before the next head's keys take the same memory
    return out


def prefill_attention_with_prior(
    q: Any,
    k: Any,
    v: Any,
    valid: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    cached_len: Any,
    sinks: Any,
    heads: int,
    block_size: int,
    scale: float,
    window: int,
    has_sinks: bool,
) -> Any:
    """Attention of a later chunk over the cached prefix and itself.

    Args:
        q: ``[T, Hq, D]``; row i stands at position ``cached_len + i``.
        k: ``[T * Hk, D]``.
        v: Like ``k``.
        valid: ``[T]`` uint8.
        k_cache: ``[N * Hk * S, D]``.
        v_cache: Like ``k_cache``.
        block_table: ``[1, M]`` int32.
        cached_len: ``[1, 1]`` int32.
        sinks: ``[Hq, 1]``, or None.
        heads: Hk.
        block_size: S.
        scale: Multiplies the scores, above 0.
        window: Keys that a query sees, itself included; 0 for all.
        has_sinks: Whether there are sinks.

    Returns:
        ``[T, Hq, D]``.
    """
    total, dim = q.shape[0], q.shape[2]
    out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    cached = broadcast_scalar(cached_len, 0.0)
    newest = broadcast_scalar(cached_len, -1.0)
    oldest = broadcast_scalar(cached_len, -float(window or FAR))
    prior_rows = cached_rows(block_table, 0, heads, block_size, newest, oldest)
    rows = own_rows(valid, heads)
    my_heads, my_tiles = shares(heads, tiles_of(total, PARTITIONS))
    for h in my_heads:
        own = own_chunks(k, v, rows, total, h * dim, q.dtype)
        prior = prior_chunks(
            k_cache, v_cache, prior_rows, block_table.shape[1], block_size, h, q.dtype
        )
        for tile in my_tiles:
            start = tile * PARTITIONS
            reach = own_reach(start, min(PARTITIONS, total - start), window)
            chunks, masks = own_views(own, valid, start, reach, window)
            cached_reach = prior_reach(reach, newest, cached)
            for i in range(len(prior)):
                first = i * chunk_size(block_size)
                count = prior[i][0].shape[2]
                chunks.append(prior[i])
                masks.append(cached_mask(block_table, 0, first, count, block_size, cached_reach))
            write_heads(q, out, chunks, masks, sinks, (start, h, heads), scale, has_sinks)
        own, prior, chunks = [], [], []  # as above
    return out


def own_chunks(k: Any, v: Any, rows: Any, total: int, offset: int, dtype: Any) -> list[Any]:
    """One head's own keys and values, 512 rows to a chunk."""
    chunks = []
    for start in range(0, total, BANK):
        where = (start // PARTITIONS, min(BANK, total - start))
        chunks.append(gathered_chunk(k, v, rows, where, offset, dtype))
    return chunks


def prior_chunks(
    k_cache: Any, v_cache: Any, rows: Any, columns: int, block_size: int, head: int, dtype: Any
) -> list[Any]:
    """One head's cached keys and values, chunk by chunk."""
    step = chunk_size(block_size)
    total = columns * block_size
    offset = head * block_size * k_cache.shape[1]
    chunks = []
    for start in range(0, total, step):
        where = (start // piece_size(block_size), min(step, total - start))
        chunks.append(gathered_chunk(k_cache, v_cache, rows, where, offset, dtype))
    return chunks


def own_reach(start: int, count: int, window: int) -> tuple[Any, Any]:
    """The last row that each query sees and the one before the first: ``[count, 1]`` fp32."""
    newest = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    oldest = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=newest, pattern=[[0, 1]], offset=start, channel_multiplier=1)
    reach = float(window or FAR)
    nisa.tensor_scalar(dst=oldest, data=newest, op0=nl.subtract, operand0=reach)
    return newest, oldest


def prior_reach(own: tuple[Any, Any], newest: Any, cached: Any) -> tuple[Any, Any]:
    """The reach into the cached prefix: all of it, but for the window."""
    count = own[0].shape[0]
    oldest = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=oldest, data1=own[1], data2=cached[0:count, :], op=nl.add)
    return newest[0:count, :], oldest


def own_views(
    own: list[Any], valid: Any, start: int, reach: tuple[Any, Any], window: int
) -> tuple[list[Any], list[Any]]:
    """The own chunks that some query of a tile may see, and their masks."""
    count = reach[0].shape[0]
    chunks = []
    masks = []
    for i in range(len(own)):
        first = i * BANK
        keys = own[i][0].shape[2]
        too_new = first >= start + count
        too_old = window > 0 and first + keys <= start - window + 1
        if not too_new and not too_old:
            chunks.append(own[i])
            masks.append(own_mask(valid, first, keys, reach))
    return chunks, masks


def write_heads(
    q: Any,
    out: Any,
    chunks: list[Any],
    masks: list[Any],
    sinks: Any,
    where: tuple[int, int, int],
    scale: float,
    has_sinks: bool,
) -> None:
    """Attend with every query head of one KV head, for one tile of queries, and store.

    Args:
        q: ``[T, Hq, D]`` in HBM.
        out: Like ``q``.
        chunks: Keys and values.
        masks: One for each chunk.
        sinks: ``[Hq, 1]`` in HBM, or None.
        where: First query, KV head, number of KV heads.
        scale: Multiplies the scores.
        has_sinks: Whether there are sinks.
    """
    start, head, heads = where
    total, q_heads, dim = q.shape
    rows = min(PARTITIONS, total - start)
    group = q_heads // heads
    for i in range(head * group, (head + 1) * group):
        tile = load(q[start : start + rows, i, :], (rows, dim), q.dtype)
        queries = turn((tile,), dim)
        if has_sinks:
            sink = sinks[i : i + 1, :].broadcast(0, rows)
            state = begin_with_sink(sink, scale, rows, dim)
        else:
            state = begin(rows, dim)
        for c in range(len(chunks)):
            keys, values = chunks[c]
            state = update(state, scores(queries, keys, dim), masks[c], values, scale)
        nisa.dma_copy(dst=out[start : start + rows, i, :], src=finish(state, q.dtype))
