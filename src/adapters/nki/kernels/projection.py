# SPDX-License-Identifier: Apache-2.0
"""Matrix products with a weight ``[in, out]``: QKV, output projection, LM head."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.tiles import (
    BANK,
    BLOCK_BYTES,
    PARTITIONS,
    load,
    load_transposed,
    my_share,
    row_vector,
    tiles_of,
    tokens_per_block,
)
from trnport.adapters.nki.nki import nisa, nl


def linear(x: Any, weight: Any, bias: Any, has_bias: bool) -> Any:
    """``x @ weight``, plus a bias, accumulated in fp32.

    Args:
        x: ``[T, K]``.
        weight: ``[K, N]``, dtype of ``x``.
        bias: ``[N]``, or None.
        has_bias: Whether to add the bias.

    Returns:
        ``[T, N]`` in the dtype of ``x``.
    """
    total, columns = x.shape[0], weight.shape[1]
    out = nl.ndarray((total, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    block = tokens_per_block(tiles_of(x.shape[1], PARTITIONS), x.dtype, BLOCK_BYTES)
    for start in range(0, total, block):
        count = min(block, total - start)
        turned = load_transposed(x, start, count)
        for n in my_share(tiles_of(columns, BANK)):
            first = n * BANK
            size = min(BANK, columns - first)
            sums = product(turned, weight, first, size)
            store_columns(out, sums, (start, first), bias, has_bias)
    return out


def store_columns(out: Any, sums: Any, where: tuple[int, int], bias: Any, has_bias: bool) -> None:
    """Cast, add a bias and store.

    Args:
        out: ``[T, N]`` in HBM.
        sums: Fp32 tiles ``[rows, size]`` in PSUM, one for each 128 rows.
        where: First row and first column.
        bias: ``[N]`` in HBM, or None.
        has_bias: Whether to add the bias.
    """
    start, first = where
    for i in range(len(sums)):
        rows, size = sums[i].shape
        tile = nl.ndarray((rows, size), dtype=out.dtype, buffer=nl.sbuf)
        if has_bias:
            added = load(row_vector(bias, first, size, rows), (rows, size), bias.dtype)
            nisa.tensor_tensor(dst=tile, data1=sums[i], data2=added, op=nl.add)
        else:
            nisa.tensor_copy(dst=tile, src=sums[i])
        at = start + i * PARTITIONS
        nisa.dma_copy(dst=out[at : at + rows, first : first + size], src=tile)


def product(turned: Any, weight: Any, first: int, size: int) -> list[Any]:
    """Columns of a product, for a block of tokens.

    Args:
        turned: ``[128, ceil(K / 128), count]``, from :func:`tiles.load_transposed`; count is
            at most 512.
        weight: ``[K, N]`` in HBM.
        first: First column.
        size: Columns, at most 512.

    Returns:
        One fp32 tile ``[rows, size]`` in PSUM for each 128 tokens.
    """
    count = turned.shape[2]
    depth = weight.shape[0]
    sums = []
    for start in range(0, count, PARTITIONS):
        rows = min(PARTITIONS, count - start)
        sums.append(nl.ndarray((rows, size), dtype=nl.float32, buffer=nl.psum))
    for s in range(tiles_of(depth, PARTITIONS)):
        at = s * PARTITIONS
        part = min(PARTITIONS, depth - at)
        tile = load(weight[at : at + part, first : first + size], (part, size), weight.dtype)
        for i in range(len(sums)):
            start = i * PARTITIONS
            stationary = turned[0:part, s, start : start + sums[i].shape[0]]
            nisa.nc_matmul(dst=sums[i], stationary=stationary, moving=tile)
    return sums
