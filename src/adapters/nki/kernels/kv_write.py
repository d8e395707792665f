# SPDX-License-Identifier: Apache-2.0
"""Scatter new keys and values into their slots of a paged cache."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.slots import slot_rows
from trnport.adapters.nki.kernels.tiles import PARTITIONS, load, my_share, tiles_of
from trnport.adapters.nki.nki import nisa, nl


def kv_write(
    k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any, block_size: int
) -> tuple[Any, Any]:
    """Write rows in place; slot -1 is out of bounds and skipped.

    Args:
        k: ``[T, Hk, D]``.
        v: Like ``k``.
        k_cache: ``[N * Hk * S, D]``, mutated; the transfer casts.
        v_cache: Like ``k_cache``.
        slots: ``[T, 1]`` int32, ``block * S + offset`` or -1.
        block_size: S.

    Returns:
        The two caches.
    """
    total, heads, dim = k.shape
    for i in my_share(tiles_of(total, PARTITIONS)):
        start = i * PARTITIONS
        count = min(PARTITIONS, total - start)
        numbers = load(slots[start : start + count, :], (count, 1), nl.int32)
        rows = slot_rows(numbers, heads, block_size)
        for source, cache in ((k, k_cache), (v, v_cache)):
            tile = load(source[start : start + count, :, :], (count, heads, dim), cache.dtype)
            target = cache.ap(
                pattern=[[dim, count], [block_size * dim, heads], [1, dim]],
                vector_offset=rows,
                indirect_dim=0,
            )
            nisa.dma_copy(dst=target, src=tile, oob_mode=nisa.oob_mode.skip)
    return k_cache, v_cache
