# SPDX-License-Identifier: Apache-2.0
"""Gated MLP: ``(silu(x @ gate) * (x @ up)) @ down``.

The first two products put the weight into the systolic array, so that their result already has
the intermediate dimension on the partitions, where the third product contracts it.
"""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.projection import product, store_columns
from trnport.adapters.nki.kernels.tiles import (
    BANK,
    PARTITIONS,
    load,
    load_transposed,
    my_share,
    tiles_of,
    tokens_per_block,
)
from trnport.adapters.nki.nki import nisa, nl

BLOCK_BYTES = 147456
"""Bytes per partition of a block's tokens, both before and after the first products."""

GROUP = 256
"""Intermediate columns that share a load of weights: two PSUM banks for each product."""


def mlp(
    x: Any,
    gate: Any,
    up: Any,
    down: Any,
    gate_bias: Any,
    up_bias: Any,
    down_bias: Any,
    has_gate_bias: bool,
    has_up_bias: bool,
    has_down_bias: bool,
) -> Any:
    """The whole gated MLP; intermediate values leave fp32 only once.

    Args:
        x: ``[T, H]``.
        gate: ``[H, I]``, dtype of ``x``.
        up: Like ``gate``.
        down: ``[I, H]``.
        gate_bias: ``[I]``, or None.
        up_bias: Like ``gate_bias``.
        down_bias: ``[H]``, or None.
        has_gate_bias: Whether to add it.
        has_up_bias: Whether to add it.
        has_down_bias: Whether to add it.

    Returns:
        ``[T, H]`` in the dtype of ``x``.
    """
    total, width = x.shape
    out = nl.ndarray((total, width), dtype=x.dtype, buffer=nl.shared_hbm)
    slices = tiles_of(width, PARTITIONS) + tiles_of(gate.shape[1], PARTITIONS)
    block = tokens_per_block(slices, x.dtype, BLOCK_BYTES)
    # Two cores share the tokens, so few tokens make smaller blocks.
    block = min(block, PARTITIONS * tiles_of(tiles_of(total, PARTITIONS), nl.num_programs(0)))
    for b in my_share(tiles_of(total, block)):
        start = b * block
        hidden = gated(
            load_transposed(x, start, min(block, total - start)),
            (gate, up),
            (gate_bias, up_bias),
            (has_gate_bias, has_up_bias),
        )
        for first in range(0, width, BANK):
            sums = product(hidden, down, first, min(BANK, width - first))
            store_columns(out, sums, (start, first), down_bias, has_down_bias)
    return out


def gated(
    turned: Any,
    weights: tuple[Any, Any],
    biases: tuple[Any, Any],
    has_bias: tuple[bool, bool],
) -> Any:
    """``silu(x @ gate) * (x @ up)``, transposed.

    Args:
        turned: ``[128, ceil(H / 128), count]`` from :func:`tiles.load_transposed`.
        weights: Gate and up, ``[H, I]`` in HBM.
        biases: ``[I]`` in HBM, or None.
        has_bias: Whether to add each bias.

    Returns:
        ``[128, ceil(I / 128), count]`` in SBUF, laid out like ``turned``.
    """
    count, inner = turned.shape[2], weights[0].shape[1]
    slices = tiles_of(inner, PARTITIONS)
    hidden = nl.ndarray((PARTITIONS, slices, count), dtype=turned.dtype, buffer=nl.sbuf)
    for first in range(0, inner, GROUP):
        size = min(GROUP, inner - first)
        opened = turned_product(turned, weights[0], first, size)
        passed = turned_product(turned, weights[1], first, size)
        for i in range(len(opened)):
            at = first + i * PARTITIONS
            rows = opened[i].shape[0]
            silu = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.sbuf)
            if has_bias[0]:
                column = load(column_vector(biases[0], at, rows), (rows, 1), nl.float32)
                nisa.activation(dst=silu, op=nl.silu, data=opened[i], bias=column)
            else:
                nisa.activation(dst=silu, op=nl.silu, data=opened[i])
            target = hidden[0:rows, at // PARTITIONS, :]
            if has_bias[1]:
                column = load(column_vector(biases[1], at, rows), (rows, 1), nl.float32)
                nisa.scalar_tensor_tensor(
                    dst=target,
                    data=passed[i],
                    op0=nl.add,
                    operand0=column,
                    op1=nl.multiply,
                    operand1=silu,
                )
            else:
                nisa.tensor_tensor(dst=target, data1=passed[i], data2=silu, op=nl.multiply)
    return hidden


def turned_product(turned: Any, weight: Any, first: int, size: int) -> list[Any]:
    """``(x @ weight[:, first : first + size]).T`` in PSUM, fp32 tiles of up to 128 rows."""
    width, count = weight.shape[0], turned.shape[2]
    sums = []
    for at in range(0, size, PARTITIONS):
        rows = min(PARTITIONS, size - at)
        sums.append(nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.psum))
    for s in range(tiles_of(width, PARTITIONS)):
        at = s * PARTITIONS
        part = min(PARTITIONS, width - at)
        tile = load(weight[at : at + part, first : first + size], (part, size), weight.dtype)
        for i in range(len(sums)):
            left = i * PARTITIONS
            nisa.nc_matmul(
                dst=sums[i],
                stationary=tile[:, left : left + sums[i].shape[0]],
                moving=turned[0:part, s, :],
            )
    return sums


def column_vector(vector: Any, start: int, size: int) -> Any:
    """View ``vector[start : start + size]`` in HBM as ``[size, 1]``."""
    return vector.reshape((vector.shape[0], 1))[start : start + size, :]
