# SPDX-License-Identifier: Apache-2.0
"""Gated MLP: ``(silu(x @ gate) * (x @ up)) @ down``.

The first two products put the weight into the systolic array, so that their result already has
the intermediate dimension on the partitions, where the third product contracts it. Two cores
share the columns of every product, so that each reads half of the weights.
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
    groups = tiles_of(gate.shape[1], GROUP)
    for start in range(0, total, block):
        hidden = gated(
            load_transposed(x, start, min(block, total - start)),
            (gate, up),
            (gate_bias, up_bias),
            (has_gate_bias, has_up_bias),
            my_share(groups),
            (0.0, 1.0),
        )
        if nl.num_programs(0) > 1:
            exchange(hidden, gate.shape[1])
        for n in my_share(tiles_of(width, BANK)):
            first = n * BANK
            sums = product(hidden, down, first, min(BANK, width - first))
            store_columns(out, sums, (start, first), down_bias, has_down_bias)
            sums = []  # before the next columns take the same memory
        hidden = []  # likewise, the next block of tokens
    return out


def exchange(hidden: Any, inner: int) -> None:
    """Give each of two cores the slices that the other one computed, through shared HBM.

    Args:
        hidden: ``[128, ceil(I / 128), count]`` in SBUF; a core has filled its groups.
        inner: I.
    """
    both = nl.ndarray(hidden.shape, dtype=hidden.dtype, buffer=nl.shared_hbm)
    per_group = GROUP // PARTITIONS
    for s in range(hidden.shape[1]):
        rows = min(PARTITIONS, inner - s * PARTITIONS)
        if s // per_group % 2 == nl.program_id(0):
            nisa.dma_copy(dst=both[0:rows, s, :], src=hidden[0:rows, s, :])
    nisa.core_barrier(data=both, cores=(0, 1))
    for s in range(hidden.shape[1]):
        rows = min(PARTITIONS, inner - s * PARTITIONS)
        if s // per_group % 2 != nl.program_id(0):
            nisa.dma_copy(dst=hidden[0:rows, s, :], src=both[0:rows, s, :])


def gated(
    turned: Any,
    weights: tuple[Any, Any],
    biases: tuple[Any, Any],
    has_bias: tuple[bool, bool],
    groups: range,
    clamp: tuple[float, float],
) -> Any:
    """``silu(x @ gate) * (x @ up)``, transposed, or the clamped form of GPT-OSS.

    Args:
        turned: ``[128, ceil(H / 128), count]`` from :func:`tiles.load_transposed`.
        weights: Gate and up, ``[H, I]`` in HBM.
        biases: ``[I]`` in HBM, or None.
        has_bias: Whether to add each bias.
        groups: Groups of 256 intermediate columns to compute.
        clamp: Limit and alpha of :func:`clamped_product`; a limit of 0 for SwiGLU.

    Returns:
        ``[128, ceil(I / 128), count]`` in SBUF, laid out like ``turned``.
    """
    count, inner = turned.shape[2], weights[0].shape[1]
    slices = tiles_of(inner, PARTITIONS)
    hidden = nl.ndarray((PARTITIONS, slices, count), dtype=turned.dtype, buffer=nl.sbuf)
    for g in groups:
        first = g * GROUP
        size = min(GROUP, inner - first)
        opened = turned_product(turned, weights[0], first, size)
        passed = turned_product(turned, weights[1], first, size)
        for i in range(len(opened)):
            at = first + i * PARTITIONS
            rows = opened[i].shape[0]
            gate_bias = bias_column(biases[0], at, rows, has_bias[0])
            up_bias = bias_column(biases[1], at, rows, has_bias[1])
            target = hidden[0:rows, at // PARTITIONS, :]
            if clamp[0] > 0:
                clamped_product(target, opened[i], passed[i], (gate_bias, up_bias), clamp)
            else:
                silu_product(target, opened[i], passed[i], (gate_bias, up_bias))
    return hidden


def silu_product(dst: Any, opened: Any, passed: Any, biases: tuple[Any, Any]) -> None:
    """``silu(gate) * up`` of tiles in PSUM, each with its bias, a column or a number."""
    silu = nl.ndarray(opened.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=silu, op=nl.silu, data=opened, bias=biases[0])
    nisa.scalar_tensor_tensor(
        dst=dst,
        data=passed,
        op0=nl.add,
        operand0=biases[1],
        op1=nl.multiply,
        operand1=silu,
    )


def clamped_product(
    dst: Any, opened: Any, passed: Any, biases: tuple[Any, Any], clamp: tuple[float, float]
) -> None:
    """``gate * sigmoid(alpha * gate) * (up + 1)`` with gate and up limited first (GPT-OSS).

    Args:
        dst: ``[P, F]``.
        opened: Gate before its bias, ``[P, F]`` in PSUM.
        passed: Up before its bias, likewise.
        biases: Columns ``[P, 1]`` or numbers.
        clamp: The limit, of gate from above and of up on both sides, and alpha.
    """
    limit, alpha = clamp
    gate = nl.ndarray(opened.shape, dtype=nl.float32, buffer=nl.sbuf)
    share = nl.ndarray(opened.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=gate,
        data=opened,
        op0=nl.add,
        operand0=biases[0],
        op1=nl.minimum,
        operand1=limit,
    )
    nisa.activation(dst=share, op=nl.sigmoid, data=gate, scale=alpha)
    nisa.tensor_tensor(dst=gate, data1=gate, data2=share, op=nl.multiply)
    nisa.tensor_scalar(
        dst=share,
        data=passed,
        op0=nl.add,
        operand0=biases[1],
        op1=nl.minimum,
        operand1=limit,
    )
    nisa.tensor_scalar(
        dst=share, data=share, op0=nl.maximum, operand0=-limit, op1=nl.add, operand1=1.0
    )
    nisa.tensor_tensor(dst=dst, data1=gate, data2=share, op=nl.multiply)


def bias_column(bias: Any, start: int, size: int, present: bool) -> Any:
    """``bias[start : start + size]`` as a column ``[size, 1]`` fp32 in SBUF, or 0.0."""
    if not present:
        return 0.0
    column = bias.reshape((bias.shape[0], 1))[start : start + size, :]
    return load(column, (size, 1), nl.float32)


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
