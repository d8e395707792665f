# SPDX-License-Identifier: Apache-2.0
"""Chunks of keys and values, from a paged cache or from the prompt's own rows."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.slots import gather, integer, within
from trnport.adapters.nki.kernels.softmax import turn
from trnport.adapters.nki.kernels.tiles import PARTITIONS, load, row_vector, tiles_of
from trnport.adapters.nki.nki import nisa, nl


def gathered_chunk(
    k_cache: Any, v_cache: Any, rows: Any, where: tuple[int, int], offset: int, dtype: Any
) -> tuple[Any, Any]:
    """One head's keys and values of consecutive positions; zeros where a row is -1.

    Args:
        k_cache: ``[R, D]`` in HBM, a cache or the prompt's own rows.
        v_cache: Like ``k_cache``.
        rows: ``[size, pieces]`` int32 in SBUF, rows of head 0.
        where: The first piece, and the number of positions.
        offset: Elements between head 0 and this head.
        dtype: Dtype of the tiles.

    Returns:
        The keys ``[128, ceil(D / 128), L]``, and the values as a list of tiles ``[P, D]``.
    """
    size, dim = rows.shape[0], k_cache.shape[1]
    first, total = where
    keys = []
    values = []
    for j in range(tiles_of(total, size)):
        count = min(size, total - j * size)
        numbers = rows[0:count, first + j : first + j + 1]
        keys.append(gather(k_cache, numbers, dim, offset, dtype))
        values.append(gather(v_cache, numbers, dim, offset, dtype))
    return turn(keys, dim), values


def cached_mask(
    table: Any, row: int, start: int, count: int, block_size: int, reach: tuple[Any, Any]
) -> Any:
    """Which of ``count`` cached positions from ``start`` each query sees.

    Args:
        table: ``[B, M]`` int32 in HBM.
        row: Row of the table.
        start: First position, a multiple of the block size.
        count: Positions, a multiple of the block size.
        block_size: S.
        reach: The last position in reach and the one before the first, ``[R, 1]`` fp32.

    Returns:
        ``[R, count]`` uint8.
    """
    queries = reach[0].shape[0]
    first, columns = start // block_size, count // block_size
    entries = table[row : row + 1, first : first + columns].broadcast(0, queries)
    blocks = load(entries, (queries, columns), nl.int32)
    spread = nl.ndarray((queries, columns, block_size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=spread, src=blocks.expand_dim(2).broadcast(2, block_size))
    places = positions_in_row(queries, start, count)
    return within(places, reach[0], reach[1], spread.reshape((queries, count)), -0.5)


def own_rows(valid: Any, heads: int) -> Any:
    """Rows of head 0 of a prompt's keys ``[T * Hk, D]``, int32 ``[128, tiles]``; -1 if invalid.

    Args:
        valid: ``[T]`` uint8 in HBM.
        heads: Hk.
    """
    total = valid.shape[0]
    tiles = tiles_of(total, PARTITIONS)
    rows = nl.ndarray((PARTITIONS, tiles), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=rows, pattern=[[PARTITIONS * heads, tiles]], offset=0, channel_multiplier=heads)
    usable = nl.ndarray((PARTITIONS, tiles), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.memset(dst=usable, value=0)
    flags = valid.reshape((total, 1))
    for j in range(tiles):
        start = j * PARTITIONS
        count = min(PARTITIONS, total - start)
        nisa.dma_copy(dst=usable[0:count, j : j + 1], src=flags[start : start + count, :])
    kept = integer((PARTITIONS, tiles), -1)
    nisa.tensor_copy_predicated(dst=kept, src=rows, predicate=usable)
    return kept


def own_mask(valid: Any, start: int, count: int, reach: tuple[Any, Any]) -> Any:
    """Which of the prompt's own keys each query sees.

    Args:
        valid: ``[T]`` uint8 in HBM.
        start: First key.
        count: Keys.
        reach: The last key in reach and the one before the first, ``[R, 1]`` fp32, as rows of
            the prompt.

    Returns:
        ``[R, count]`` uint8.
    """
    queries = reach[0].shape[0]
    usable = load(row_vector(valid, start, count, queries), (queries, count), nl.uint8)
    return within(positions_in_row(queries, start, count), reach[0], reach[1], usable, 0.5)


def positions_in_row(rows: int, start: int, count: int) -> Any:
    """``start, start + 1, ...`` in every row: fp32 ``[rows, count]``."""
    tile = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=tile, pattern=[[1, count]], offset=start, channel_multiplier=0)
    return tile
