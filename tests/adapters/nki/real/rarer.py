# SPDX-License-Identifier: Apache-2.0
"""Instructions that kernels seldom use: wide searches, cumulative sums, packed formats."""

from __future__ import annotations

from typing import Any

import torch

from tests.adapters.nki.real.program import (
    APPROXIMATE,
    ROUNDING,
    Program,
    fresh,
    integers,
    load,
    normal,
    store,
)
from trnport.adapters.nki.nki import nisa, nl


def best_of_many(x: Any) -> Any:
    """The largest of each group of 16 partitions."""
    values = fresh((x.shape[0], 16), nl.bfloat16)
    places = fresh((x.shape[0], 16), nl.uint32)
    nisa.topk(values, places, load(x), 16 * x.shape[1])
    return store(values), store(places)


def positions(x: Any) -> Any:
    """Positions of what is not zero, and how many, on the first partition of each group."""
    out = fresh((x.shape[0], x.shape[1] + 1), nl.int32)
    nisa.memset(dst=out, value=3)
    nisa.nonzero_with_count(dst=out, src=load(x), index_offset=5, padding_val=-1)
    return store(out)


def bounds(x: Any) -> Any:
    """Start and end of each run of equal numbers."""
    out = fresh((1, 2, x.shape[1]))
    nisa.sequence_bounds(dst=out, segment_ids=load(x))
    return store(out)


def running(x: Any) -> Any:
    """Running sums of doubled elements."""
    out = fresh(x.shape)
    nisa.tensor_scalar_cumulative(dst=out, src=load(x), op0=nl.multiply, op1=nl.add, imm0=2.0)
    return store(out)


def two_constants(x: Any) -> Any:
    """A function of x * 0.5 + 0.25, and its maximum."""
    out, most = fresh(x.shape), fresh((x.shape[0], 1))
    nisa.activate2(
        dst=out,
        op=nl.sigmoid,
        data=load(x),
        imm0=0.5,
        imm1=0.25,
        op0=nl.multiply,
        op1=nl.add,
        reduce_op=nl.maximum,
        reduce_res=most,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    return store(out), store(most)


def packed(x: Any) -> tuple[Any, Any]:
    """Eight-bit floats, four to a word, and the scales of their groups."""
    shape = (x.shape[0], x.shape[1] // 4)
    words, scales = fresh(shape, nl.float8_e4m3fn_x4), fresh(shape, nl.uint8)
    nisa.memset(dst=scales, value=0)
    nisa.quantize_mx(dst=words, src=load(x), dst_scale=scales)
    return words, scales


def packed_matmul(x: Any, w: Any) -> Any:
    """Product of two packed tiles; also the scales of one."""
    (stationary, stationary_scale), (moving, moving_scale) = packed(x), packed(w)
    psum = nl.ndarray((x.shape[1] // 4, w.shape[1] // 4), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul_mx(
        dst=psum,
        stationary=stationary,
        moving=moving,
        stationary_scale=stationary_scale,
        moving_scale=moving_scale,
    )
    out = fresh(psum.shape)
    nisa.tensor_copy(dst=out, src=psum)
    return store(out), store(stationary_scale)


def _sparse() -> Any:
    return normal(48, 9) * (normal(48, 9, seed=1) > 0)


PROGRAMS = {
    "topk": Program(best_of_many, lambda: (normal(32, 20, dtype=torch.bfloat16),)),
    "nonzero_with_count": Program(positions, lambda: (_sparse(),)),
    "sequence_bounds": Program(bounds, lambda: (integers([[0, 0, 2, 2, 2, 5]]).float(),)),
    "tensor_scalar_cumulative": Program(running, lambda: (normal(7, 33),), ROUNDING),
    "activate2": Program(two_constants, lambda: (normal(7, 33),), APPROXIMATE, targets=("trn3",)),
    "nc_matmul_mx": Program(
        packed_matmul,
        lambda: tuple(normal(128, 4 * n, seed=n, dtype=torch.bfloat16) for n in (16, 24)),
        ROUNDING,
        targets=("trn3",),
    ),
}
