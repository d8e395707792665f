# SPDX-License-Identifier: Apache-2.0
"""Attention over chunks of keys with a running softmax (Milakov and Gimelshein, 2018).

The state of R query rows is a tuple of fp32 tiles: the largest score so far ``[R, 1]``, the sum
of exponentials ``[R, 1]`` and the weighted values ``[R, D]``. Scores are kept unscaled; the scale
is applied in the exponential.
"""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.tiles import PARTITIONS, tiles_of, transpose_into
from trnport.adapters.nki.nki import nisa, nl

LOWEST = -1e30
"""Starts the running maximum. Every real score is above it."""

UNSEEN = -3e38
"""Score of a key that must not be seen: so far below that its exponential is 0."""


def begin(rows: int, dim: int) -> tuple[Any, Any, Any]:
    """State before the first chunk, without a sink."""
    top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    values = nl.ndarray((rows, dim), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=top, value=LOWEST)
    nisa.memset(dst=total, value=0.0)
    nisa.memset(dst=values, value=0.0)
    return top, total, values


def begin_with_sink(sinks: Any, scale: float, rows: int, dim: int) -> tuple[Any, Any, Any]:
    """State that has seen a key of value zero with the sink as its scaled score.

    Args:
        sinks: ``[rows, 1]`` in HBM.
        scale: Multiplies the scores, above 0.
        rows: R.
        dim: D.
    """
    top, total, values = begin(rows, dim)
    nisa.dma_copy(dst=top, src=sinks)
    nisa.tensor_scalar(dst=top, data=top, op0=nl.multiply, operand0=1.0 / scale)
    nisa.memset(dst=total, value=1.0)
    return top, total, values


def scores(queries: Any, keys: Any, dim: int) -> Any:
    """Unscaled scores ``[R, L]`` in PSUM.

    Args:
        queries: ``[128, ceil(D / 128), R]``, D on the partitions.
        keys: ``[128, ceil(D / 128), L]``.
        dim: D.
    """
    rows, count = queries.shape[2], keys.shape[2]
    result = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.psum)
    for s in range(tiles_of(dim, PARTITIONS)):
        part = min(PARTITIONS, dim - s * PARTITIONS)
        nisa.nc_matmul(dst=result, stationary=queries[0:part, s, :], moving=keys[0:part, s, :])
    return result


def update(
    state: tuple[Any, Any, Any], raw: Any, seen: Any, pieces: Any, scale: float
) -> tuple[Any, Any, Any]:
    """Take in one chunk of keys.

    Args:
        state: Top, total and values.
        raw: ``[R, L]`` unscaled scores.
        seen: ``[R, L]`` uint8, which key each query may see.
        pieces: The values in order, ``[at most 128, D]`` tiles in SBUF of L rows together.
        scale: Multiplies the scores.

    Returns:
        The new state.
    """
    top, total, values = state
    rows, count = raw.shape
    dtype = pieces[0].dtype
    masked = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.sbuf)
    highest = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.select_reduce(
        dst=masked,
        predicate=seen,
        on_true=raw,
        on_false=UNSEEN,
        reduce_res=highest,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
        reduce_op=nl.maximum,
    )
    nisa.tensor_tensor(dst=highest, data1=highest, data2=top, op=nl.maximum)
    shift = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=shift, data=highest, op0=nl.multiply, operand0=-scale)
    decay = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=decay, op=nl.exp, data=top, bias=shift, scale=scale)
    weights = nl.ndarray((rows, count), dtype=dtype, buffer=nl.sbuf)
    added = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=weights,
        op=nl.exp,
        data=masked,
        bias=shift,
        scale=scale,
        reduce_op=nl.add,
        reduce_res=added,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    nisa.scalar_tensor_tensor(
        dst=total, data=total, op0=nl.multiply, operand0=decay, op1=nl.add, operand1=added
    )
    gained = weighted_values(weights, pieces)
    nisa.scalar_tensor_tensor(
        dst=values, data=values, op0=nl.multiply, operand0=decay, op1=nl.add, operand1=gained
    )
    return highest, total, values


def weighted_values(weights: Any, pieces: Any) -> Any:
    """``weights [R, L] @ values [L, D]`` as fp32 in PSUM."""
    rows = weights.shape[0]
    result = nl.ndarray((rows, pieces[0].shape[1]), dtype=nl.float32, buffer=nl.psum)
    start = 0
    for i in range(len(pieces)):
        count = pieces[i].shape[0]
        turned = nl.ndarray((count, rows), dtype=weights.dtype, buffer=nl.sbuf)
        transpose_into(turned, weights[:, start : start + count])
        nisa.nc_matmul(dst=result, stationary=turned, moving=pieces[i])
        start = start + count
    return result


def finish(state: tuple[Any, Any, Any], dtype: Any) -> Any:
    """The output ``[R, D]`` in SBUF; zeros for a row that saw nothing."""
    _, total, values = state
    inverse = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=inverse, data=total, op0=nl.maximum, operand0=1e-30)
    nisa.reciprocal(dst=inverse, data=inverse)
    result = nl.ndarray(values.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=values, op0=nl.multiply, operand0=inverse)
    return result


def turn(tiles: Any, dim: int) -> Any:
    """Transpose key or query tiles ``[P, D]`` into one ``[128, ceil(D / 128), sum of P]``."""
    count = 0
    for i in range(len(tiles)):
        count = count + tiles[i].shape[0]
    slices = tiles_of(dim, PARTITIONS)
    result = nl.ndarray((PARTITIONS, slices, count), dtype=tiles[0].dtype, buffer=nl.sbuf)
    start = 0
    for i in range(len(tiles)):
        rows = tiles[i].shape[0]
        for s in range(slices):
            first = s * PARTITIONS
            part = min(PARTITIONS, dim - first)
            transpose_into(
                result[0:part, s, start : start + rows], tiles[i][:, first : first + part]
            )
        start = start + rows
    return result
