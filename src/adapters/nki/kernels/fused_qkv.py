# SPDX-License-Identifier: Apache-2.0
"""Norm, QKV projection and rotary embedding in one kernel: one pass over the tokens in HBM.

The port has no such operator yet.
"""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.norm import normalised
from trnport.adapters.nki.kernels.projection import product
from trnport.adapters.nki.kernels.rotary import rotated
from trnport.adapters.nki.kernels.softmax import turn
from trnport.adapters.nki.kernels.tiles import (
    BANK,
    PARTITIONS,
    load,
    my_share,
    row_vector,
    tiles_of,
)
from trnport.adapters.nki.nki import nisa, nl


def norm_qkv_rope(
    x: Any,
    norm_weight: Any,
    weight: Any,
    bias: Any,
    cos: Any,
    sin: Any,
    eps: float,
    heads: tuple[int, int],
    has_bias: bool,
) -> tuple[Any, Any, Any]:
    """Queries and keys ready for attention, and values.

    Args:
        x: ``[T, H]``, the residual stream.
        norm_weight: ``[H]``.
        weight: ``[H, (Hq + 2 * Hk) * D]``, columns in the order Q, K, V.
        bias: ``[(Hq + 2 * Hk) * D]``, or None.
        cos: ``[T, R/2]``.
        sin: Like ``cos``.
        eps: Added to the mean square.
        heads: Hq and Hk.
        has_bias: Whether to add the bias.

    Returns:
        ``[T, Hq, D]`` and twice ``[T, Hk, D]`` in the dtype of ``x``.
    """
    total, width = x.shape
    q_heads, kv_heads = heads
    dim = weight.shape[1] // (q_heads + 2 * kv_heads)
    half = cos.shape[1]
    q = nl.ndarray((total, q_heads, dim), dtype=x.dtype, buffer=nl.shared_hbm)
    k = nl.ndarray((total, kv_heads, dim), dtype=x.dtype, buffer=nl.shared_hbm)
    v = nl.ndarray((total, kv_heads, dim), dtype=x.dtype, buffer=nl.shared_hbm)
    most = min(PARTITIONS, total)
    scale = load(row_vector(norm_weight, 0, width, most), (most, width), x.dtype)
    for i in my_share(tiles_of(total, PARTITIONS)):
        start = i * PARTITIONS
        stop = min(start + PARTITIONS, total)
        rows = stop - start
        tile = load(x[start:stop, :], (rows, width), x.dtype)
        turned = turn((normalised(tile, scale[0:rows, :], eps),), width)
        projected = project_tile(turned, weight, bias, has_bias)
        projected = projected.reshape((rows, q_heads + 2 * kv_heads, dim))
        cosines = load(cos[start:stop, :], (rows, half), cos.dtype)
        sines = load(sin[start:stop, :], (rows, half), sin.dtype)
        queries = rotated(projected[:, 0:q_heads, :], cosines, sines)
        keys = rotated(projected[:, q_heads : q_heads + kv_heads, :], cosines, sines)
        values = projected[:, q_heads + kv_heads : q_heads + 2 * kv_heads, :]
        nisa.dma_copy(dst=q[start:stop, :, :], src=queries)
        nisa.dma_copy(dst=k[start:stop, :, :], src=keys)
        nisa.dma_copy(dst=v[start:stop, :, :], src=values)
    return q, k, v


def project_tile(turned: Any, weight: Any, bias: Any, has_bias: bool) -> Any:
    """A product of one tile of tokens that stays in SBUF.

    Args:
        turned: ``[128, ceil(H / 128), P]``, columns on the partitions.
        weight: ``[H, N]`` in HBM.
        bias: ``[N]`` in HBM, or None.
        has_bias: Whether to add the bias.

    Returns:
        ``[P, N]`` in the dtype of ``turned``.
    """
    rows, columns = turned.shape[2], weight.shape[1]
    result = nl.ndarray((rows, columns), dtype=turned.dtype, buffer=nl.sbuf)
    for first in range(0, columns, BANK):
        size = min(BANK, columns - first)
        sums = product(turned, weight, first, size)
        part = result[:, first : first + size]
        if has_bias:
            added = load(row_vector(bias, first, size, rows), (rows, size), bias.dtype)
            nisa.tensor_tensor(dst=part, data1=sums[0], data2=added, op=nl.add)
        else:
            nisa.tensor_copy(dst=part, src=sums[0])
    return result
