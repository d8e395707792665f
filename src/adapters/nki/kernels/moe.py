# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts for few tokens: every expert computes every token.

With as many tokens as experts are chosen from, nearly every expert's weights are read anyway, so
there is nothing to gain from sorting tokens by expert. Two cores share the experts.
"""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.mlp import GROUP, gated
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


def moe_all_experts(
    x: Any,
    affinities: Any,
    gate: Any,
    up: Any,
    down: Any,
    gate_bias: Any,
    up_bias: Any,
    down_bias: Any,
    has_bias: bool,
    limit: float,
    alpha: float,
) -> Any:
    """Sum over experts of ``affinity * expert(x)``, in fp32.

    Args:
        x: ``[T, H]``.
        affinities: ``[T, E]`` fp32, 0 where a token does not go to an expert.
        gate: ``[E, H, I]``, dtype of ``x``.
        up: Like ``gate``.
        down: ``[E, I, H]``.
        gate_bias: ``[E, I]``, or None.
        up_bias: Like ``gate_bias``.
        down_bias: ``[E, H]``, or None.
        has_bias: Whether there are biases, all three.
        limit: Of GPT-OSS's clamped activation; 0 for SwiGLU.
        alpha: Of the same.

    Returns:
        ``[T, H]`` in the dtype of ``x``.
    """
    total, width = x.shape
    experts = affinities.shape[1]
    out = nl.ndarray((total, width), dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, total, PARTITIONS):
        rows = min(PARTITIONS, total - start)
        turned = load_transposed(x, start, rows)
        weights = load(affinities[start : start + rows, :], (rows, experts), nl.float32)
        mixed = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=mixed, value=0.0)
        groups = range(tiles_of(gate.shape[2], GROUP))
        for e in my_share(experts):
            biases = (gate_bias[e], up_bias[e]) if has_bias else (None, None)
            hidden = gated(
                turned,
                (gate[e], up[e]),
                biases,
                (has_bias, has_bias),
                groups,
                (limit, alpha),
            )
            last = down_bias[e] if has_bias else None
            add_expert(mixed, hidden, down[e], last, weights[:, e : e + 1], has_bias)
        if nl.num_programs(0) > 1:
            add_other_core(mixed)
        result = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=mixed)
        for n in my_share(tiles_of(width, BANK)):
            first = n * BANK
            last_column = min(first + BANK, width)
            nisa.dma_copy(
                dst=out[start : start + rows, first:last_column],
                src=result[:, first:last_column],
            )
    return out


def add_other_core(mixed: Any) -> None:
    """Add the other core's partial sums to ``mixed [P, H]`` fp32, through shared HBM."""
    rows, width = mixed.shape
    both = nl.ndarray((2, rows, width), dtype=nl.float32, buffer=nl.shared_hbm)
    here = nl.program_id(0)
    nisa.dma_copy(dst=both[here], src=mixed)
    nisa.core_barrier(data=both, cores=(0, 1))
    other = load(both[1 - here], (rows, width), nl.float32)
    nisa.tensor_tensor(dst=mixed, data1=mixed, data2=other, op=nl.add)


def add_expert(
    mixed: Any, hidden: Any, down: Any, bias: Any, affinity: Any, has_bias: bool
) -> None:
    """Add ``affinity * (hidden @ down + bias)``.

    Args:
        mixed: ``[P, H]`` fp32 in SBUF, changed.
        hidden: ``[128, ceil(I / 128), P]`` in SBUF.
        down: ``[I, H]`` in HBM.
        bias: ``[H]`` in HBM, or None.
        affinity: ``[P, 1]`` fp32 in SBUF.
        has_bias: Whether to add the bias.
    """
    rows, width = mixed.shape
    for first in range(0, width, BANK):
        size = min(BANK, width - first)
        data = product(hidden, down, first, size)[0]
        if has_bias:
            added = load(row_vector(bias, first, size, rows), (rows, size), nl.float32)
            nisa.tensor_tensor(dst=added, data1=data, data2=added, op=nl.add)
            data = added
        part = mixed[:, first : first + size]
        nisa.scalar_tensor_tensor(
            dst=part,
            data=data,
            op0=nl.multiply,
            operand0=affinity,
            op1=nl.add,
            operand1=part,
        )
