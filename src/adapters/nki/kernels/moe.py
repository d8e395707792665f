# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts for few tokens: every expert computes every token.

With as many tokens as experts are chosen from, nearly every expert's weights are read anyway, so
there is nothing to gain from sorting tokens by expert.
"""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.mlp import gated
from trnport.adapters.nki.kernels.projection import product
from trnport.adapters.nki.kernels.tiles import (
    BANK,
    PARTITIONS,
    load,
    load_transposed,
    my_share,
    tiles_of,
)
from trnport.adapters.nki.nki import nisa, nl


def moe_all_experts(x: Any, affinities: Any, gate: Any, up: Any, down: Any) -> Any:
    """Sum over experts of ``affinity * ((silu(x @ gate) * (x @ up)) @ down)``, in fp32.

    Args:
        x: ``[T, H]``.
        affinities: ``[T, E]`` fp32, 0 where a token does not go to an expert.
        gate: ``[E, H, I]``, dtype of ``x``.
        up: Like ``gate``.
        down: ``[E, I, H]``.

    Returns:
        ``[T, H]`` in the dtype of ``x``.
    """
    total, width = x.shape
    experts = affinities.shape[1]
    out = nl.ndarray((total, width), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in my_share(tiles_of(total, PARTITIONS)):
        start = i * PARTITIONS
        rows = min(PARTITIONS, total - start)
        turned = load_transposed(x, start, rows)
        weights = load(affinities[start : start + rows, :], (rows, experts), nl.float32)
        mixed = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=mixed, value=0.0)
        for e in range(experts):
            hidden = gated(turned, (gate[e], up[e]), (None, None), (False, False))
            for first in range(0, width, BANK):
                size = min(BANK, width - first)
                sums = product(hidden, down[e], first, size)
                part = mixed[:, first : first + size]
                nisa.scalar_tensor_tensor(
                    dst=part,
                    data=sums[0],
                    op0=nl.multiply,
                    operand0=weights[:, e : e + 1],
                    op1=nl.add,
                    operand1=part,
                )
        result = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=mixed)
        nisa.dma_copy(dst=out[start : start + rows, :], src=result)
    return out
