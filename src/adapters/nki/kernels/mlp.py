# SPDX-License-Identifier: Apache-2.0
"""Gated MLP: ``(silu(x @ gate) * (x @ up)) @ down``.

The first two products put the weight into the systolic array, so that their result already has
the intermediate dimension on the partitions, where the third product contracts it.
"""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.projection import product
from trnport.adapters.nki.kernels.tiles import (
    BANK,
    PARTITIONS,
    load,
    load_transposed,
    my_share,
    row_vector,
    tiles_of,
)
from trnport.adapters.nki.nki import nisa, nl

MAX_HIDDEN_BYTES = 65536
"""Bytes per partition that the intermediate activations of a block of tokens may take."""


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
    out = nl.ndarray((total, down.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    block = tokens_per_block(gate.shape[1])
    # Two cores share the tokens; a block is halved when there is only one.
    block = min(block, PARTITIONS * tiles_of(tiles_of(total, PARTITIONS), nl.num_programs(0)))
    for b in my_share(tiles_of(total, block)):
        start = b * block
        turned = load_transposed(x, start, min(block, total - start))
        hidden = gated(turned, width, gate, up, gate_bias, up_bias, has_gate_bias, has_up_bias)
        for first in range(0, down.shape[1], BANK):
            size = min(BANK, down.shape[1] - first)
            sums = product(hidden, down, first, size)
            for i in range(len(sums)):
                rows = sums[i].shape[0]
                tile = nl.ndarray((rows, size), dtype=x.dtype, buffer=nl.sbuf)
                if has_down_bias:
                    added = load(
                        row_vector(down_bias, first, size, rows), (rows, size), down_bias.dtype
                    )
                    nisa.tensor_tensor(dst=tile, data1=sums[i], data2=added, op=nl.add)
                else:
                    nisa.tensor_copy(dst=tile, src=sums[i])
                at = start + i * PARTITIONS
                nisa.dma_copy(dst=out[at : at + rows, first : first + size], src=tile)
    return out


def tokens_per_block(intermediate: int) -> int:
    """Tokens whose intermediate activations fit, 128 to 512."""
    fitting = MAX_HIDDEN_BYTES // (4 * tiles_of(intermediate, PARTITIONS))
    return max(PARTITIONS, min(BANK, fitting // PARTITIONS * PARTITIONS))


def gated(
    turned: Any,
    width: int,
    gate: Any,
    up: Any,
    gate_bias: Any,
    up_bias: Any,
    has_gate_bias: bool,
    has_up_bias: bool,
) -> Any:
    """``silu(x @ gate) * (x @ up)``, transposed.

    Args:
        turned: ``[128, ceil(H / 128), count]`` from :func:`tiles.load_transposed`.
        width: H.
        gate: ``[H, I]`` in HBM.
        up: Like ``gate``.
        gate_bias: ``[I]`` in HBM, or None.
        up_bias: Like ``gate_bias``.
        has_gate_bias: Whether to add it.
        has_up_bias: Whether to add it.

    Returns:
        ``[128, ceil(I / 128), count]`` in SBUF, laid out like ``turned``.
    """
    count, inner = turned.shape[2], gate.shape[1]
    slices = tiles_of(inner, PARTITIONS)
    hidden = nl.ndarray((PARTITIONS, slices, count), dtype=turned.dtype, buffer=nl.sbuf)
    for s in range(slices):
        first = s * PARTITIONS
        rows = min(PARTITIONS, inner - first)
        opened = turned_product(turned, width, gate, first, rows)
        passed = turned_product(turned, width, up, first, rows)
        silu = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.sbuf)
        if has_gate_bias:
            column = load(column_vector(gate_bias, first, rows), (rows, 1), nl.float32)
            nisa.activation(dst=silu, op=nl.silu, data=opened, bias=column)
        else:
            nisa.activation(dst=silu, op=nl.silu, data=opened)
        target = hidden[0:rows, s, :]
        if has_up_bias:
            column = load(column_vector(up_bias, first, rows), (rows, 1), nl.float32)
            nisa.scalar_tensor_tensor(
                dst=target,
                data=passed,
                op0=nl.add,
                operand0=column,
                op1=nl.multiply,
                operand1=silu,
            )
        else:
            nisa.tensor_tensor(dst=target, data1=passed, data2=silu, op=nl.multiply)
    return hidden


def turned_product(turned: Any, width: int, weight: Any, first: int, rows: int) -> Any:
    """``(x @ weight[:, first : first + rows]).T`` as fp32 ``[rows, count]`` in PSUM."""
    result = nl.ndarray((rows, turned.shape[2]), dtype=nl.float32, buffer=nl.psum)
    for s in range(tiles_of(width, PARTITIONS)):
        at = s * PARTITIONS
        part = min(PARTITIONS, width - at)
        tile = load(weight[at : at + part, first : first + rows], (part, rows), weight.dtype)
        nisa.nc_matmul(dst=result, stationary=tile, moving=turned[0:part, s, :])
    return result


def column_vector(vector: Any, start: int, size: int) -> Any:
    """View ``vector[start : start + size]`` in HBM as ``[size, 1]``."""
    return vector.reshape((vector.shape[0], 1))[start : start + size, :]
