# SPDX-License-Identifier: Apache-2.0
"""Router of a mixture of experts: which k experts each token goes to, and with what weight."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.projection import product
from trnport.adapters.nki.kernels.tiles import (
    PARTITIONS,
    load,
    load_transposed,
    my_share,
    row_vector,
    tiles_of,
)
from trnport.adapters.nki.kernels.topk import EIGHT, TAKEN
from trnport.adapters.nki.nki import nisa, nl

ABSENT = 3.4028234663852886e38
"""A value that no logit has: looking for it finds nothing."""


def router_top_k(
    x: Any, weight: Any, bias: Any, k: int, has_bias: bool, softmax_over_all: bool
) -> tuple[Any, Any, Any]:
    """Choose k experts per token; equal logits rank by index, lowest first.

    Args:
        x: ``[T, H]``.
        weight: ``[H, E]``, dtype of ``x``; E at most 512.
        bias: ``[E]``, or None.
        k: At most E.
        has_bias: Whether to add the bias.
        softmax_over_all: Weights are shares of all experts; else of the chosen k, which then
            sum to 1.

    Returns:
        The weight of every expert ``[T, E]`` fp32, 0 where not chosen; the chosen experts
        ``[T, k]`` int32 and their weights ``[T, k]`` fp32, both in descending order.
    """
    total, experts = x.shape[0], weight.shape[1]
    affinities = nl.ndarray((total, experts), dtype=nl.float32, buffer=nl.shared_hbm)
    chosen = nl.ndarray((total, k), dtype=nl.int32, buffer=nl.shared_hbm)
    shares = nl.ndarray((total, k), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in my_share(tiles_of(total, PARTITIONS)):
        start = i * PARTITIONS
        rows = min(PARTITIONS, total - start)
        stop = start + rows
        sums = product(load_transposed(x, start, rows), weight, 0, experts)
        width = max(EIGHT, experts)
        logits = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        if width > experts:
            nisa.memset(dst=logits, value=TAKEN)
        if has_bias:
            added = load(row_vector(bias, 0, experts, rows), (rows, experts), bias.dtype)
            nisa.tensor_tensor(dst=logits[:, 0:experts], data1=sums[0], data2=added, op=nl.add)
        else:
            nisa.tensor_copy(dst=logits[:, 0:experts], src=sums[0])
        values, places, taken = choose(logits, k)
        every, best = weigh(logits, values, k, softmax_over_all)
        dense = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=dense, value=0.0)
        nisa.tensor_copy_predicated(dst=dense, src=every, predicate=taken)
        nisa.dma_copy(dst=affinities[start:stop, :], src=dense[:, 0:experts])
        nisa.dma_copy(dst=chosen[start:stop, :], src=places[:, 0:k])
        nisa.dma_copy(dst=shares[start:stop, :], src=best)
    return affinities, chosen, shares


def choose(logits: Any, k: int) -> tuple[Any, Any, Any]:
    """The k largest logits of a tile.

    Args:
        logits: ``[P, F]`` fp32, F at least 8.
        k: How many.

    Returns:
        Values ``[P, k or more]`` fp32, places alike in int32, and ``[P, F]`` uint8, 1 where
        chosen.
    """
    rows, width = logits.shape
    rounds = tiles_of(k, EIGHT)
    values = nl.ndarray((rows, rounds * EIGHT), dtype=nl.float32, buffer=nl.sbuf)
    found = nl.ndarray((rows, rounds * EIGHT), dtype=nl.uint32, buffer=nl.sbuf)
    left = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=left, src=logits)
    for r in range(rounds):
        first = r * EIGHT
        top = values[:, first : first + EIGHT]
        nisa.max8(dst=top, src=left)
        nisa.nc_find_index8(dst=found[:, first : first + EIGHT], data=left, vals=top)
        wanted = nl.ndarray((rows, EIGHT), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=wanted, src=top)
        if k - first < EIGHT:
            nisa.memset(dst=wanted[:, k - first : EIGHT], value=ABSENT)
        nisa.nc_match_replace8(dst=left, data=left, vals=wanted, imm=TAKEN)
    places = nl.ndarray((rows, rounds * EIGHT), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=places, src=found)
    taken = nl.ndarray((rows, width), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=taken, data=left, op0=nl.less_equal, operand0=TAKEN)
    return values, places, taken


def weigh(logits: Any, values: Any, k: int, over_all: bool) -> tuple[Any, Any]:
    """Softmax weights of all logits and of the k largest.

    Args:
        logits: ``[P, F]`` fp32; places beyond the experts are so low that they weigh 0.
        values: ``[P, k or more]``, the largest in descending order.
        k: How many were chosen.
        over_all: Whether the sum is over all.

    Returns:
        ``[P, F]`` and ``[P, k]`` fp32.
    """
    rows, width = logits.shape
    shift = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=shift, data=values[:, 0:1], op0=nl.multiply, operand0=-1.0)
    every = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    best = nl.ndarray((rows, k), dtype=nl.float32, buffer=nl.sbuf)
    sum_all = exponentials(every, logits, shift)
    sum_best = exponentials(best, values[:, 0:k], shift)
    inverse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=sum_all if over_all else sum_best)
    nisa.tensor_scalar(dst=every, data=every, op0=nl.multiply, operand0=inverse)
    nisa.tensor_scalar(dst=best, data=best, op0=nl.multiply, operand0=inverse)
    return every, best


def exponentials(dst: Any, data: Any, shift: Any) -> Any:
    """Write ``exp(data + shift)`` and return its sum over each row, ``[P, 1]`` fp32."""
    total = nl.ndarray((dst.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=dst,
        op=nl.exp,
        data=data,
        bias=shift,
        reduce_op=nl.add,
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    return total
