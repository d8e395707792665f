# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square normalisation, alone and behind a residual addition."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.tiles import PARTITIONS, load, my_share, row_vector, tiles_of
from trnport.adapters.nki.nki import nisa, nl


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """Normalise rows in fp32, cast, then scale.

    Args:
        x: ``[T, H]``.
        weight: ``[H]``.
        eps: Added to the mean square.

    Returns:
        ``[T, H]`` in the dtype of ``x``.
    """
    total, width = x.shape
    out = nl.ndarray((total, width), dtype=x.dtype, buffer=nl.shared_hbm)
    most = min(PARTITIONS, total)
    scale = load(row_vector(weight, 0, width, most), (most, width), x.dtype)
    for i in my_share(tiles_of(total, PARTITIONS)):
        start = i * PARTITIONS
        rows = min(PARTITIONS, total - start)
        tile = load(x[start : start + rows, :], (rows, width), x.dtype)
        nisa.dma_copy(dst=out[start : start + rows, :], src=normalised(tile, scale[0:rows, :], eps))
    return out


def add_rms_norm(x: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    """Add a residual, then normalise the sum.

    Args:
        x: ``[T, H]``.
        residual: Like ``x``.
        weight: ``[H]``.
        eps: Added to the mean square.

    Returns:
        The normalised rows and the sum, both ``[T, H]`` in the dtype of ``x``.
    """
    total, width = x.shape
    out = nl.ndarray((total, width), dtype=x.dtype, buffer=nl.shared_hbm)
    sums = nl.ndarray((total, width), dtype=x.dtype, buffer=nl.shared_hbm)
    most = min(PARTITIONS, total)
    scale = load(row_vector(weight, 0, width, most), (most, width), x.dtype)
    for i in my_share(tiles_of(total, PARTITIONS)):
        start = i * PARTITIONS
        rows = min(PARTITIONS, total - start)
        tile = load(x[start : start + rows, :], (rows, width), x.dtype)
        other = load(residual[start : start + rows, :], (rows, width), x.dtype)
        nisa.tensor_tensor(dst=tile, data1=tile, data2=other, op=nl.add)
        nisa.dma_copy(dst=sums[start : start + rows, :], src=tile)
        nisa.dma_copy(dst=out[start : start + rows, :], src=normalised(tile, scale[0:rows, :], eps))
    return out, sums


def normalised(tile: Any, scale: Any, eps: float) -> Any:
    """Normalise a tile in SBUF.

    Args:
        tile: ``[P, H]``.
        scale: ``[P, H]``, the weight in every row.
        eps: Added to the mean square.

    Returns:
        A new tile like ``tile``.
    """
    rows, width = tile.shape
    squares = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    inverse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=squares,
        op=nl.square,
        data=tile,
        reduce_op=nl.add,
        reduce_res=inverse,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    nisa.tensor_scalar(
        dst=inverse, data=inverse, op0=nl.multiply, operand0=1.0 / width, op1=nl.add, operand1=eps
    )
    # A power has no limited range, unlike the activation function: padding may hold infinity.
    nisa.tensor_scalar(dst=inverse, data=inverse, op0=nl.power, operand0=-0.5)
    result = nl.ndarray((rows, width), dtype=tile.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=tile, op0=nl.multiply, operand0=inverse)
    nisa.tensor_tensor(dst=result, data1=result, data2=scale, op=nl.multiply)
    return result
