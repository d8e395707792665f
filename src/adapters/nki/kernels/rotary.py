# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding of split halves."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.tiles import PARTITIONS, load, my_share, tiles_of
from trnport.adapters.nki.nki import nisa, nl


def rope(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """Rotate the pairs (i, i + R/2) of every head; dimensions from R on pass through.

    Args:
        q: ``[T, Hq, D]``.
        k: ``[T, Hk, D]``.
        cos: ``[T, R/2]``.
        sin: Like ``cos``.

    Returns:
        Rotated ``q`` and ``k``.
    """
    total, half = cos.shape
    q_out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    k_out = nl.ndarray(k.shape, dtype=k.dtype, buffer=nl.shared_hbm)
    for i in my_share(tiles_of(total, PARTITIONS)):
        start = i * PARTITIONS
        stop = min(start + PARTITIONS, total)
        rows = stop - start
        cosines = load(cos[start:stop, :], (rows, half), cos.dtype)
        sines = load(sin[start:stop, :], (rows, half), sin.dtype)
        for source, target in ((q, q_out), (k, k_out)):
            heads, dim = source.shape[1], source.shape[2]
            tile = load(source[start:stop, :, :], (rows, heads, dim), source.dtype)
            nisa.dma_copy(dst=target[start:stop, :, :], src=rotated(tile, cosines, sines))
    return q_out, k_out


def rotated(tile: Any, cosines: Any, sines: Any) -> Any:
    """Rotate a tile in SBUF.

    Args:
        tile: ``[P, heads, D]``.
        cosines: ``[P, R/2]``.
        sines: Like ``cosines``.

    Returns:
        A new tile like ``tile``.
    """
    rows, heads, dim = tile.shape
    half = cosines.shape[1]
    result = nl.ndarray((rows, heads, dim), dtype=tile.dtype, buffer=nl.sbuf)
    left = nl.ndarray((rows, heads, half), dtype=nl.float32, buffer=nl.sbuf)
    right = nl.ndarray((rows, heads, half), dtype=nl.float32, buffer=nl.sbuf)
    cos = cosines.expand_dim(1).broadcast(1, heads)
    sin = sines.expand_dim(1).broadcast(1, heads)
    first, second = tile[:, :, 0:half], tile[:, :, half : 2 * half]
    nisa.tensor_tensor(dst=left, data1=first, data2=cos, op=nl.multiply)
    nisa.tensor_tensor(dst=right, data1=second, data2=sin, op=nl.multiply)
    nisa.tensor_tensor(dst=result[:, :, 0:half], data1=left, data2=right, op=nl.subtract)
    nisa.tensor_tensor(dst=left, data1=second, data2=cos, op=nl.multiply)
    nisa.tensor_tensor(dst=right, data1=first, data2=sin, op=nl.multiply)
    nisa.tensor_tensor(dst=result[:, :, half : 2 * half], data1=left, data2=right, op=nl.add)
    if 2 * half < dim:
        nisa.tensor_copy(dst=result[:, :, 2 * half : dim], src=tile[:, :, 2 * half : dim])
    return result
