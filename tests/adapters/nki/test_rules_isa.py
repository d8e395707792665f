# SPDX-License-Identifier: Apache-2.0
"""Every rule of the compute instructions, broken once or more: one row per broken constraint."""

import numpy as np
import pytest

from tests.adapters.nki.tiles import tile
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.rules import RULES, RuleViolationError
from trnport.adapters.nki.simulator.rules_isa import ISA_RULES

CMD, ENG = nisa.reduce_cmd, nisa.engine
BF16, I8, U8, I16, U16, I32, U32 = (
    "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32",
)  # fmt: skip


def t(*shape, dtype="float32", fill=1, at=0):
    """A tile of one value; `at` is its first partition."""
    whole = tile(np.full((at + shape[0], *shape[1:]), fill), dtype)
    return whole[at:] if at else whole


def ps(*shape, dtype="float32"):
    """The same in PSUM."""
    return tile(np.ones(shape), dtype, nl.psum)


def ind(dtype="float32", at=0):
    """A tile behind an index that starts at partition `at`, (16, 16)."""
    return t(16, 20, dtype=dtype).indirect(t(16, 1, dtype="uint16", at=at), 16)


def hbm():
    return tile(np.ones((2, 4)), "float32", nl.hbm)


def shuffle(mask, dst=None, src=None):
    nisa.nc_stream_shuffle(dst or t(32, 2), src or t(32, 2), mask)


def rsel(dst=None, data=None, op0=nl.less, op1=nl.less, b0=None, b1=None, **more):
    data = data if data is not None else t(2, 4)
    nisa.range_select(
        dst if dst is not None else t(2, 4),
        data,
        op0,
        op1,
        b0 if b0 is not None else t(2, 1),
        b1 if b1 is not None else t(2, 1),
        **more,
    )


def act2(op0=nl.bypass, op1=nl.bypass, imm0=0.0, imm1=0.0, **more):
    nisa.activate2(t(2, 4), nl.copy, t(2, 4), imm0, imm1, op0, op1, **more)


def act(data=None, op=nl.copy, dst=None, **more):
    nisa.activation(dst or t(2, 4), op, data or t(2, 4), **more)


def tt(op=nl.add, a=None, b=None, dst=None, **more):
    nisa.tensor_tensor(
        dst if dst is not None else t(2, 4),
        a if a is not None else t(2, 4),
        b if b is not None else t(2, 4),
        op,
        **more,
    )


def ts(op0=nl.add, operand0=1.0, data=None, dst=None, **more):
    dst = dst if dst is not None else t(2, 4)
    nisa.tensor_scalar(dst, data if data is not None else t(2, 4), op0, operand0, **more)


def tsr(op0=nl.add, operand=1.0, reduce_op=nl.add, **more):
    nisa.tensor_scalar_reduce(t(2, 4), t(2, 4), op0, operand, reduce_op, **more)


def cum(op0=nl.add, op1=nl.add, dst=None, src=None, **more):
    nisa.tensor_scalar_cumulative(dst or t(2, 4), src or t(2, 4), op0, op1, 1.0, **more)


def scan(op0=nl.add, op1=nl.add, a=None, b=None):
    nisa.tensor_tensor_scan(t(2, 4), a or t(2, 4), b or t(2, 4), 0.0, op0, op1)


def gather(dst=None, src=None, index=None, *sizes):
    nisa.local_gather(
        dst if dst is not None else t(16, 16),
        src if src is not None else t(16, 8),
        index if index is not None else t(16, 1, dtype=U16),
        *sizes,
    )


def topk(n=16, values=None, index=None, src=None):
    nisa.topk(
        values if values is not None else t(16, 4, dtype=BF16),
        index if index is not None else t(16, 4, dtype=U32),
        src if src is not None else t(16, 2, dtype=BF16),
        n,
    )


def pred(dst=None, src=None, predicate=None):
    nisa.tensor_copy_predicated(
        dst if dst is not None else t(2, 4),
        src if src is not None else t(2, 4),
        predicate if predicate is not None else t(2, 4, dtype=U8),
    )


def sel(predicate=None, on_true=None, on_false=0.0, **more):
    nisa.select_reduce(
        t(2, 4),
        predicate if predicate is not None else t(2, 4, dtype=U8),
        on_true if on_true is not None else t(2, 4),
        on_false,
        **more,
    )


def fill(pattern, **more):
    nisa.iota(t(2, 4, dtype=I32), pattern, **more)


def asel(pattern=([1, 4],), dst=None, src=None, false=0.0, op=nl.equal):
    nisa.affine_select(
        dst if dst is not None else t(2, 4), pattern, 0, src or t(2, 4), false, cmp_op=op
    )


def exp(dst=None, src=None, **more):
    nisa.exponential(dst or t(2, 4), src or t(2, 4), **more)


def copy(dst, src, **more):
    nisa.tensor_copy(dst, src, **more)


#: target, rule, instruction, what breaks it
CASES = [
    # --- buffers and shapes
    ("trn2", "NKI-BUFFER", "tensor_copy", lambda: copy(hbm(), t(2, 4))),
    ("trn2", "NKI-BUFFER", "tensor_copy", lambda: copy(t(2, 4), hbm())),
    ("trn2", "NKI-BUFFER", "tensor_tensor", lambda: tt(a=ps(2, 4), b=ps(2, 4))),
    ("trn2", "NKI-BUFFER", "tensor_tensor_scan", lambda: scan(a=ps(2, 4), b=ps(2, 4))),
    (
        "trn2",
        "NKI-BUFFER",
        "scalar_tensor_tensor",
        lambda: nisa.scalar_tensor_tensor(t(2, 4), ps(2, 4), nl.add, 1.0, nl.add, ps(2, 4)),
    ),
    (
        "trn2",
        "NKI-BUFFER",
        "tensor_copy_predicated",
        lambda: pred(src=ps(2, 4), predicate=ps(2, 4, dtype=U8)),
    ),
    (
        "trn2",
        "NKI-BUFFER",
        "select_reduce",
        lambda: sel(predicate=ps(2, 4, dtype=U8), on_true=ps(2, 4)),
    ),
    ("trn2", "NKI-START-PARTITION", "tensor_copy", lambda: copy(t(2, 4, at=5), t(2, 4))),
    ("trn2", "NKI-START-PARTITION", "tensor_copy", lambda: copy(t(64, 1, at=32), t(64, 1))),
    ("trn2", "NKI-GPSIMD-PSUM", "tensor_copy", lambda: copy(t(2, 4), ps(2, 4), engine=ENG.gpsimd)),
    ("trn2", "NKI-GPSIMD-PSUM", "tensor_copy", lambda: copy(ps(2, 4), t(2, 4), engine=ENG.gpsimd)),
    ("trn2", "NKI-GPSIMD-PSUM", "memset", lambda: nisa.memset(ps(2, 4), 1.0, engine=ENG.gpsimd)),
    ("trn2", "NKI-GPSIMD-PSUM", "iota", lambda: nisa.iota(ps(2, 4), [[1, 4]])),
    ("trn2", "NKI-GPSIMD-PSUM", "tensor_tensor", lambda: tt(nl.power, a=ps(2, 4))),
    ("trn2", "NKI-GPSIMD-PSUM", "tensor_tensor", lambda: tt(dst=ps(2, 4), engine=ENG.gpsimd)),
    (
        "trn2",
        "NKI-GPSIMD-PSUM",
        "tensor_scalar",
        lambda: ts(nl.rsqrt, None, data=ps(2, 4), engine=ENG.gpsimd),
    ),
    ("trn2", "NKI-GPSIMD-PSUM", "affine_select", lambda: asel(dst=ps(2, 4))),
    (
        "trn2",
        "NKI-GPSIMD-PSUM",
        "tensor_partition_reduce",
        lambda: nisa.tensor_partition_reduce(t(1, 4), nl.add, ps(2, 4)),
    ),
    ("trn2", "NKI-GPSIMD-PSUM", "local_gather", lambda: gather(src=ps(16, 8))),
    (
        "trn2",
        "NKI-GPSIMD-PSUM",
        "nc_n_gather",
        lambda: nisa.nc_n_gather(t(2, 4), ps(2, 4), t(2, 4, dtype=U32)),
    ),
    ("trn2", "NKI-SHAPE", "tensor_copy", lambda: copy(t(2, 4), t(2, 5))),
    ("trn2", "NKI-SHAPE", "tensor_copy", lambda: copy(t(2, 4), t(3, 4))),
    ("trn2", "NKI-SHAPE", "reciprocal", lambda: nisa.reciprocal(t(2, 4), t(2, 3))),
    ("trn2", "NKI-SHAPE", "tensor_scalar", lambda: ts(operand0=t(2, 2))),
    ("trn2", "NKI-SHAPE", "tensor_scalar", lambda: ts(operand0=t(1, 1))),
    ("trn2", "NKI-SHAPE", "activation", lambda: act(bias=t(3, 1))),
    ("trn2", "NKI-SHAPE", "activation", lambda: act(reduce_res=t(2, 2))),
    ("trn2", "NKI-SHAPE", "range_select", lambda: rsel(b0=t(2, 2))),
    ("trn2", "NKI-SHAPE", "tensor_reduce", lambda: nisa.tensor_reduce(t(2, 2), nl.add, t(2, 4), 1)),
    (
        "trn2",
        "NKI-SHAPE",
        "tensor_partition_reduce",
        lambda: nisa.tensor_partition_reduce(t(2, 4), nl.add, t(2, 4)),
    ),
    ("trn2", "NKI-SHAPE", "max8", lambda: nisa.max8(t(2, 7), t(2, 9))),
    ("trn2", "NKI-SHAPE", "max8", lambda: nisa.max8(t(2, 2, 4), t(2, 9))),
    (
        "trn2",
        "NKI-SHAPE",
        "nc_find_index8",
        lambda: nisa.nc_find_index8(t(2, 8, dtype=U32), t(2, 9), t(2, 4)),
    ),
    ("trn2", "NKI-SHAPE", "bn_stats", lambda: nisa.bn_stats(t(2, 5), t(2, 9))),
    ("trn2", "NKI-SHAPE", "bn_aggr", lambda: nisa.bn_aggr(t(2, 3), t(2, 9))),
    ("trn2", "NKI-SHAPE", "nc_stream_shuffle", lambda: shuffle([0] * 32, dst=t(32, 3))),
    ("trn2", "NKI-SHAPE", "local_gather", lambda: gather(t(8, 16), t(8, 8), t(8, 1, dtype=U16))),
    (
        "trn2",
        "NKI-SHAPE",
        "nonzero_with_count",
        lambda: nisa.nonzero_with_count(t(2, 4, dtype=I32), t(2, 4)),
    ),
    ("trn2", "NKI-SHAPE", "sequence_bounds", lambda: nisa.sequence_bounds(t(1, 8), t(1, 4))),
    ("trn2", "NKI-SHAPE", "sequence_bounds", lambda: nisa.sequence_bounds(t(2, 2, 4), t(2, 4))),
    (
        "trn2",
        "NKI-SHAPE",
        "topk",
        lambda: topk(8, t(8, 4, dtype=BF16), t(8, 4, dtype=U32), t(8, 2, dtype=BF16)),
    ),
    ("trn2", "NKI-BROADCAST", "tensor_tensor", lambda: tt(b=t(2, 1))),
    ("trn2", "NKI-BROADCAST", "tensor_tensor", lambda: tt(a=t(1, 4))),
    (
        "trn2",
        "NKI-BROADCAST",
        "scalar_tensor_tensor",
        lambda: nisa.scalar_tensor_tensor(t(2, 4), t(2, 4), nl.add, 1.0, nl.add, t(2, 1)),
    ),
    ("trn2", "NKI-FREE-SIZE", "max8", lambda: nisa.max8(t(2, 8), t(2, 7))),
    ("trn2", "NKI-FREE-SIZE", "max8", lambda: nisa.max8(t(1, 8), t(1, 16385))),
    (
        "trn2",
        "NKI-FREE-SIZE",
        "nc_find_index8",
        lambda: nisa.nc_find_index8(t(2, 8, dtype=U32), t(2, 7), t(2, 8)),
    ),
    (
        "trn2",
        "NKI-FREE-SIZE",
        "nc_match_replace8",
        lambda: nisa.nc_match_replace8(t(2, 7), t(2, 7), t(2, 8), 0.0),
    ),
    ("trn2", "NKI-FREE-SIZE", "bn_stats", lambda: nisa.bn_stats(t(1, 6), t(1, 513))),
    ("trn2", "NKI-FREE-SIZE", "topk", lambda: topk(33)),
    ("trn2", "NKI-RANK-LIMIT", "max8", lambda: nisa.max8(t(2, 8), t(2, 2, 2, 4))),
    (
        "trn2",
        "NKI-RANK-LIMIT",
        "nc_find_index8",
        lambda: nisa.nc_find_index8(t(2, 8, dtype=U32), t(2, 2, 2, 2), t(2, 8)),
    ),
    ("trn3", "NKI-RANK-LIMIT", "exponential", lambda: exp(t(2, 1, 1, 1, 1), t(2, 1, 1, 1, 1))),
    # --- dtypes
    ("trn2", "NKI-DTYPE", "tensor_copy_predicated", lambda: pred(predicate=t(2, 4, dtype=I8))),
    ("trn2", "NKI-DTYPE", "tensor_copy_predicated", lambda: pred(src=t(2, 4, dtype=BF16))),
    ("trn2", "NKI-DTYPE", "range_select", lambda: rsel(data=t(2, 4, dtype=I32))),
    ("trn2", "NKI-DTYPE", "select_reduce", lambda: sel(predicate=t(2, 4, dtype=U32))),
    ("trn2", "NKI-DTYPE", "select_reduce", lambda: sel(on_true=t(2, 4, dtype=I32))),
    ("trn2", "NKI-DTYPE", "select_reduce", lambda: sel(on_true=t(2, 4, dtype="tfloat32"))),
    (
        "trn2",
        "NKI-DTYPE",
        "select_reduce",
        lambda: sel(reduce_res=t(2, 1, dtype=I32), reduce_cmd=CMD.reset_reduce),
    ),
    ("trn2", "NKI-DTYPE", "tensor_scalar_cumulative", lambda: cum(src=t(2, 4, dtype=I32))),
    ("trn2", "NKI-DTYPE", "tensor_scalar_cumulative", lambda: cum(dst=t(2, 4, dtype=U32))),
    (
        "trn2",
        "NKI-DTYPE",
        "nc_find_index8",
        lambda: nisa.nc_find_index8(t(2, 8, dtype=I32), t(2, 9), t(2, 8)),
    ),
    (
        "trn2",
        "NKI-DTYPE",
        "nc_match_replace8",
        lambda: nisa.nc_match_replace8(t(2, 9), t(2, 9), t(2, 8), 0.0, t(2, 8)),
    ),
    ("trn2", "NKI-DTYPE", "nc_stream_shuffle", lambda: shuffle([0] * 32, dst=t(32, 2, dtype=I32))),
    ("trn2", "NKI-DTYPE", "local_gather", lambda: gather(index=t(16, 1, dtype=U32))),
    ("trn2", "NKI-DTYPE", "local_gather", lambda: gather(dst=t(16, 16, dtype=BF16))),
    (
        "trn2",
        "NKI-DTYPE",
        "nc_n_gather",
        lambda: nisa.nc_n_gather(t(2, 4), t(2, 4), t(2, 4, dtype=U16)),
    ),
    (
        "trn2",
        "NKI-DTYPE",
        "nc_n_gather",
        lambda: nisa.nc_n_gather(t(2, 4), t(2, 4, dtype=I32), t(2, 4, dtype=U32)),
    ),
    (
        "trn2",
        "NKI-DTYPE",
        "nonzero_with_count",
        lambda: nisa.nonzero_with_count(t(2, 5, dtype=I32), t(2, 4, dtype=BF16)),
    ),
    ("trn2", "NKI-DTYPE", "nonzero_with_count", lambda: nisa.nonzero_with_count(t(2, 5), t(2, 4))),
    (
        "trn2",
        "NKI-DTYPE",
        "sequence_bounds",
        lambda: nisa.sequence_bounds(t(1, 2, 4, dtype=BF16), t(1, 4)),
    ),
    ("trn2", "NKI-DTYPE", "topk", lambda: topk(src=t(16, 2))),
    ("trn2", "NKI-DTYPE", "topk", lambda: topk(index=t(16, 4, dtype=I32))),
    ("trn3", "NKI-DTYPE", "exponential", lambda: exp(dst=t(2, 4, dtype=U32))),
    ("trn3", "NKI-DTYPE", "exponential", lambda: exp(src=t(2, 4, dtype="tfloat32"))),
    (
        "trn3",
        "NKI-DTYPE",
        "exponential",
        lambda: exp(reduce_res=t(2, 1, dtype=I32), reduce_cmd=CMD.reset_reduce),
    ),
    ("trn3", "NKI-DTYPE", "activate2", lambda: act2(imm0=t(2, 1), imm1=t(2, 1, dtype=BF16))),
    # --- operators
    ("trn2", "NKI-OP", "tensor_tensor", lambda: tt(nl.exp)),
    ("trn2", "NKI-OP", "tensor_scalar", lambda: ts(nl.sqrt)),
    ("trn2", "NKI-DIVIDE", "tensor_tensor", lambda: tt(nl.divide)),
    ("trn2", "NKI-DIVIDE", "tensor_scalar", lambda: ts(nl.mod)),
    ("trn2", "NKI-DIVIDE", "tensor_scalar", lambda: ts(np.fmod)),
    ("trn2", "NKI-OP-TARGET", "tensor_tensor", lambda: tt(nl.abs_max)),
    ("trn2", "NKI-OP-TARGET", "tensor_scalar", lambda: ts(nl.square, None)),
    (
        "trn2",
        "NKI-OP-REDUCTION",
        "tensor_reduce",
        lambda: nisa.tensor_reduce(t(2, 1), nl.less, t(2, 4), 1),
    ),
    ("trn2", "NKI-OP-REDUCTION", "tensor_scalar_reduce", lambda: tsr(reduce_op=nl.subtract)),
    ("trn2", "NKI-OP-REDUCTION", "tensor_scalar_cumulative", lambda: cum(op1=nl.logical_or)),
    ("trn2", "NKI-OP-REDUCTION", "activation", lambda: act(reduce_op=nl.maximum)),
    ("trn2", "NKI-OP-REDUCTION", "range_select", lambda: rsel(reduce_op=nl.add)),
    ("trn2", "NKI-OP-REDUCTION", "select_reduce", lambda: sel(reduce_op=nl.minimum)),
    ("trn3", "NKI-OP-REDUCTION", "activate2", lambda: act2(reduce_op=nl.multiply)),
    (
        "trn2",
        "NKI-OP-REDUCTION",
        "tensor_partition_reduce",
        lambda: nisa.tensor_partition_reduce(t(1, 4), nl.minimum, t(2, 4)),
    ),
    (
        "trn2",
        "NKI-OP-MIXED",
        "tensor_scalar",
        lambda: ts(
            nl.bitwise_and, 1, t(2, 4, dtype=I32), t(2, 4, dtype=I32), op1=nl.add, operand1=1
        ),
    ),
    ("trn2", "NKI-OP-CLASS", "tensor_tensor", lambda: tt(nl.abs)),
    ("trn2", "NKI-OP-CLASS", "tensor_scalar_reduce", lambda: tsr(nl.bitwise_or, 1)),
    ("trn2", "NKI-OP-CLASS", "tensor_tensor_scan", lambda: scan(nl.bitwise_or)),
    ("trn2", "NKI-OP-CLASS", "tensor_tensor_scan", lambda: scan(op1=nl.abs)),
    (
        "trn2",
        "NKI-OP-CLASS",
        "scalar_tensor_tensor",
        lambda: nisa.scalar_tensor_tensor(t(2, 4), t(2, 4), nl.add, 1.0, nl.bitwise_or, t(2, 4)),
    ),
    (
        "trn2",
        "NKI-OP-CLASS",
        "tensor_reduce",
        lambda: nisa.tensor_reduce(
            t(2, 1, dtype=I32), nl.bitwise_or, t(2, 4, dtype=I32), 1, negate=True
        ),
    ),
    ("trn2", "NKI-OP-UNARY", "tensor_scalar", lambda: ts(nl.abs, 2.0)),
    ("trn2", "NKI-OP-UNARY", "tensor_scalar", lambda: ts(nl.rsqrt, t(2, 1))),
    (
        "trn2",
        "NKI-OP-UNARY",
        "tensor_scalar",
        lambda: ts(nl.invert, 1, t(2, 4, dtype=I32), t(2, 4, dtype=I32)),
    ),
    ("trn2", "NKI-BITVEC-DTYPE", "tensor_tensor", lambda: tt(nl.bitwise_and)),
    (
        "trn2",
        "NKI-BITVEC-DTYPE",
        "tensor_tensor",
        lambda: tt(nl.bitwise_and, t(2, 4, dtype=I32), t(2, 4, dtype=I32)),
    ),
    ("trn2", "NKI-BITVEC-DTYPE", "tensor_scalar", lambda: ts(nl.bitwise_and, 1)),
    (
        "trn2",
        "NKI-BITVEC-DTYPE",
        "tensor_reduce",
        lambda: nisa.tensor_reduce(t(2, 1), nl.bitwise_or, t(2, 4), 1),
    ),
    (
        "trn2",
        "NKI-BITVEC-WIDTH",
        "tensor_tensor",
        lambda: tt(nl.bitwise_or, t(2, 4, dtype=U8), t(2, 4, dtype=I32), t(2, 4, dtype=I32)),
    ),
    (
        "trn2",
        "NKI-BITVEC-WIDTH",
        "tensor_scalar",
        lambda: ts(nl.bitwise_or, t(2, 1, dtype=U8), t(2, 4, dtype=I32), t(2, 4, dtype=I32)),
    ),
    ("trn2", "NKI-OPERAND", "tensor_scalar", lambda: ts(operand0="1")),
    ("trn2", "NKI-OPERAND", "tensor_scalar", lambda: ts(operand0=None)),
    ("trn2", "NKI-OPERAND", "tensor_scalar", lambda: ts(operand1=2.0)),
    ("trn2", "NKI-OPERAND", "memset", lambda: nisa.memset(t(2, 4), "0")),
    (
        "trn2",
        "NKI-OPERAND",
        "tensor_scalar",
        lambda: ts(nl.bitwise_and, 1.0, t(2, 4, dtype=I32), t(2, 4, dtype=I32)),
    ),
    (
        "trn2",
        "NKI-OPERAND",
        "tensor_scalar",
        lambda: ts(nl.bitwise_and, 256, t(2, 4, dtype=U8), t(2, 4, dtype=U8)),
    ),
    ("trn2", "NKI-OPERAND", "affine_select", lambda: asel(false=t(2, 1))),
    ("trn2", "NKI-OPERAND", "tensor_copy_predicated", lambda: pred(src="x")),
    (
        "trn2",
        "NKI-OPERAND",
        "nc_match_replace8",
        lambda: nisa.nc_match_replace8(t(2, 9), t(2, 9), t(2, 8), None),
    ),
    ("trn2", "NKI-OPERAND-DTYPE", "tensor_scalar", lambda: ts(operand0=t(2, 1, dtype=BF16))),
    ("trn2", "NKI-OPERAND-DTYPE", "tensor_scalar_reduce", lambda: tsr(operand=t(2, 1, dtype=I32))),
    ("trn2", "NKI-OPERAND-DTYPE", "activation", lambda: act(scale=t(2, 1, dtype=BF16))),
    ("trn2", "NKI-OPERAND-DTYPE", "activation", lambda: act(bias=t(2, 1, dtype="tfloat32"))),
    ("trn3", "NKI-OPERAND-DTYPE", "exponential", lambda: exp(max_value=t(2, 1, dtype=BF16))),
    # --- engines and targets
    ("trn2", "NKI-ENGINE", "tensor_copy", lambda: copy(t(2, 4), t(2, 4), engine=ENG.tensor)),
    ("trn2", "NKI-ENGINE", "tensor_copy", lambda: copy(t(2, 4), t(2, 4), engine=5)),
    ("trn2", "NKI-ENGINE", "memset", lambda: nisa.memset(t(2, 4), 0.0, engine=ENG.scalar)),
    ("trn2", "NKI-ENGINE", "tensor_tensor", lambda: tt(engine=ENG.scalar)),
    ("trn2", "NKI-ENGINE", "tensor_tensor", lambda: tt(nl.power, engine=ENG.vector)),
    (
        "trn2",
        "NKI-ENGINE",
        "tensor_tensor",
        lambda: tt(nl.bitwise_or, *[t(2, 4, dtype=I32) for _ in range(3)], engine=ENG.gpsimd),
    ),
    (
        "trn2",
        "NKI-ENGINE",
        "tensor_scalar",
        lambda: ts(nl.bitwise_or, 1, t(2, 4, dtype=I32), t(2, 4, dtype=I32), engine=ENG.scalar),
    ),
    ("trn2", "NKI-ENGINE", "tensor_scalar", lambda: ts(nl.subtract, engine=ENG.scalar)),
    (
        "trn2",
        "NKI-ENGINE",
        "tensor_scalar",
        lambda: ts(nl.add, op1=nl.multiply, operand1=2.0, engine=ENG.scalar),
    ),
    ("trn2", "NKI-ENGINE", "tensor_scalar", lambda: ts(nl.add, engine=ENG.gpsimd)),
    ("trn2", "NKI-TARGET", "exponential", exp),
    ("trn2", "NKI-TARGET", "activate2", act2),
    # --- constants, patterns, functions
    (
        "trn2",
        "NKI-INT-OVERFLOW",
        "tensor_tensor",
        lambda: tt(
            nl.add, *[t(2, 4, dtype=I32, fill=2**31 - 1) for _ in range(2)], t(2, 4, dtype=I32)
        ),
    ),
    ("trn2", "NKI-MEMSET-KIND", "memset", lambda: nisa.memset(t(2, 4, dtype=I32), 2.0)),
    ("trn2", "NKI-MEMSET-KIND", "memset", lambda: nisa.memset(t(2, 4, dtype=U8), 256)),
    (
        "trn3",
        "NKI-MEMSET-PACKED",
        "memset",
        lambda: nisa.memset(t(2, 4, dtype="float8_e4m3fn_x4"), 1),
    ),
    ("trn2", "NKI-PATTERN", "iota", lambda: fill([[1, 3]])),
    ("trn2", "NKI-PATTERN", "iota", lambda: fill([[1, 1]] * 4 + [[1, 4]])),
    ("trn2", "NKI-PATTERN", "iota", lambda: fill([])),
    ("trn2", "NKI-PATTERN", "iota", lambda: fill([4])),
    ("trn2", "NKI-PATTERN", "iota", lambda: fill([[0.5, 4]])),
    ("trn2", "NKI-PATTERN", "affine_select", lambda: asel([[1, 5]])),
    ("trn2", "NKI-PARAMETER", "iota", lambda: fill([[1, 4]], offset=0.5)),
    ("trn2", "NKI-PARAMETER", "iota", lambda: fill([[1, 4]], offset=2**31)),
    ("trn2", "NKI-PARAMETER", "iota", lambda: fill([[1, 4]], channel_multiplier=1.0)),
    ("trn2", "NKI-PARAMETER", "tensor_scalar_reduce", lambda: tsr(reverse0=True)),
    (
        "trn2",
        "NKI-PARAMETER",
        "sequence_bounds",
        lambda: nisa.sequence_bounds(t(1, 2, 2), t(1, 2, fill=-1)),
    ),
    ("trn2", "NKI-ACT-FUNCTION", "activation", lambda: act(op=nl.add)),
    ("trn2", "NKI-ACT-FUNCTION", "activation", lambda: act(op=nl.prelu)),
    ("trn2", "NKI-ACT-RANGE", "activation", lambda: act(op=nl.log, scale=0.0)),
    ("trn2", "NKI-ACT-RANGE", "activation", lambda: act(op=nl.log, scale=2.0**65)),
    ("trn2", "NKI-ACT-RANGE", "activation", lambda: act(op=nl.sin, scale=3.2)),
    ("trn2", "NKI-ACT-RANGE", "activation", lambda: act(op=nl.sin, scale=-3.2)),
    ("trn2", "NKI-ACT-RANGE", "activation", lambda: act(op=nl.arctan, scale=1.6)),
    ("trn2", "NKI-ACT-RANGE", "activation", lambda: act(op=nl.sqrt, scale=2.0**119)),
    ("trn2", "NKI-ACT-RANGE", "activation", lambda: act(op=nl.rsqrt, scale=0.0)),
    ("trn2", "NKI-ACT-RANGE", "activation", lambda: act(op=nl.reciprocal, scale=-(2.0**43))),
    ("trn2", "NKI-ACT-RANGE", "activation", lambda: act(op=nl.reciprocal, scale=2.0**-43)),
    ("trn3", "NKI-ACT-PAIR", "activate2", lambda: act2(nl.add, nl.multiply)),
    ("trn3", "NKI-ACT-PAIR", "activate2", lambda: act2(nl.bypass, nl.add)),
    ("trn3", "NKI-ACT-PAIR", "activate2", lambda: act2(reverse0=True)),
    ("trn3", "NKI-ACT-PAIR", "activate2", lambda: act2(nl.multiply, reverse1=True)),
    # --- accumulators
    ("trn2", "NKI-REDUCE-CMD", "activation", lambda: act(reduce_cmd=CMD.load_reduce)),
    ("trn2", "NKI-REDUCE-CMD", "activation", lambda: act(reduce_cmd=CMD.reset_reduce)),
    ("trn2", "NKI-REDUCE-CMD", "activation", lambda: act(reduce_cmd=3)),
    ("trn2", "NKI-REDUCE-CMD", "tensor_scalar_reduce", lambda: tsr(reduce_cmd=CMD.idle)),
    ("trn2", "NKI-REDUCE-CMD", "tensor_scalar_reduce", lambda: tsr(reduce_init=1.0)),
    ("trn2", "NKI-REDUCE-CMD", "tensor_scalar_reduce", lambda: tsr(reduce_cmd=CMD.load_reduce)),
    ("trn2", "NKI-REDUCE-CMD", "tensor_scalar_cumulative", lambda: cum(imm1=1.0)),
    ("trn2", "NKI-REDUCE-CMD", "range_select", lambda: rsel(reduce_cmd=CMD.load_reduce)),
    ("trn3", "NKI-REDUCE-CMD", "exponential", lambda: exp(reduce_init=1.0)),
    ("trn3", "NKI-REDUCE-CMD", "exponential", lambda: exp(reduce_cmd=CMD.reset)),
    ("trn2", "NKI-ACCUMULATOR", "activation", lambda: act(reduce_res=t(2, 1))),
    ("trn2", "NKI-ACCUMULATOR", "tensor_scalar_reduce", lambda: tsr(reduce_cmd=CMD.reduce)),
    ("trn2", "NKI-ACCUMULATOR", "select_reduce", lambda: sel(reduce_res=t(2, 1))),
    (
        "trn2",
        "NKI-REDUCE-AXIS",
        "tensor_reduce",
        lambda: nisa.tensor_reduce(t(1, 4), nl.add, t(2, 4), 0),
    ),
    (
        "trn2",
        "NKI-REDUCE-AXIS",
        "tensor_reduce",
        lambda: nisa.tensor_reduce(t(2, 4), nl.add, t(2, 3, 4), 1),
    ),
    (
        "trn2",
        "NKI-REDUCE-AXIS",
        "tensor_reduce",
        lambda: nisa.tensor_reduce(t(2, 3), nl.add, t(2, 3, 4), (0, 2)),
    ),
    (
        "trn2",
        "NKI-REDUCE-AXIS",
        "tensor_reduce",
        lambda: nisa.tensor_reduce(t(2, 3), nl.add, t(2, 3, 4), "x"),
    ),
    # --- selections
    ("trn2", "NKI-FILL-VALUE", "range_select", lambda: rsel(on_false_value=0.0)),
    ("trn2", "NKI-INDEX-RANGE", "range_select", lambda: rsel(range_start=2**24)),
    ("trn2", "NKI-INDEX-RANGE", "range_select", lambda: rsel(range_start=1.5)),
    ("trn2", "NKI-COMPARE", "range_select", lambda: rsel(op0=nl.not_equal)),
    ("trn2", "NKI-COMPARE", "range_select", lambda: rsel(op1=nl.add)),
    ("trn2", "NKI-COMPARE", "affine_select", lambda: asel(op=nl.add)),
    # --- shuffles and gathers
    ("trn2", "NKI-SHUFFLE-MASK", "nc_stream_shuffle", lambda: shuffle([0] * 31)),
    ("trn2", "NKI-SHUFFLE-MASK", "nc_stream_shuffle", lambda: shuffle([32] * 32)),
    ("trn2", "NKI-SHUFFLE-MASK", "nc_stream_shuffle", lambda: shuffle([1] * 32, src=t(1, 2))),
    (
        "trn2",
        "NKI-SHUFFLE-MASK",
        "nc_stream_shuffle",
        lambda: shuffle([0] * 32, dst=t(64, 2), src=t(32, 2)),
    ),
    (
        "trn2",
        "NKI-SHUFFLE-START",
        "nc_stream_shuffle",
        lambda: shuffle([0] * 32, dst=t(64, 2, at=32)),
    ),
    (
        "trn2",
        "NKI-SHUFFLE-START",
        "nc_stream_shuffle",
        lambda: shuffle([0] * 32, src=t(4, 2, at=16)),
    ),
    ("trn2", "NKI-GATHER-INDEX", "local_gather", lambda: gather(index=t(16, 1, dtype=U16, fill=8))),
    (
        "trn2",
        "NKI-GATHER-INDEX",
        "local_gather",
        lambda: gather(t(16, 32), None, t(16, 1, dtype=U16, fill=7), 2),
    ),
    (
        "trn2",
        "NKI-GATHER-INDEX",
        "nc_n_gather",
        lambda: nisa.nc_n_gather(t(2, 4), t(2, 4), t(2, 4, dtype=U32, fill=4)),
    ),
    ("trn2", "NKI-GATHER-SIZE", "local_gather", lambda: gather(None, None, None, 3)),
    ("trn2", "NKI-GATHER-SIZE", "local_gather", lambda: gather(None, None, None, 2)),
    ("trn2", "NKI-GATHER-SIZE", "local_gather", lambda: gather(None, None, None, 1, 17)),
    (
        "trn2",
        "NKI-GATHER-SIZE",
        "local_gather",
        lambda: gather(t(16, 16 * 257), None, t(16, 257, dtype=U16)),
    ),
    ("trn2", "NKI-TOPK-SIZE", "topk", lambda: topk(7)),
    ("trn2", "NKI-TOPK-SIZE", "topk", lambda: topk(65536)),
    ("trn2", "NKI-TOPK-SIZE", "topk", lambda: topk(8, t(16, 9, dtype=BF16), t(16, 9, dtype=U32))),
    ("trn2", "NKI-BN-TRIPLES", "bn_aggr", lambda: nisa.bn_aggr(t(2, 2), t(2, 4))),
    # --- views behind an index
    ("trn3", "NKI-INDIRECT-START", "tensor_copy", lambda: copy(t(16, 16), ind(at=16))),
    ("trn3", "NKI-INDIRECT-START", "tensor_copy", lambda: copy(t(16, 16), ind(at=32))),
    ("trn3", "NKI-INDIRECT-START", "tensor_copy", lambda: copy(ind(at=16), t(16, 16))),
    (
        "trn3",
        "NKI-INDIRECT-OPERAND",
        "tensor_tensor",
        lambda: tt(a=t(16, 16), dst=t(16, 16), b=ind()),
    ),
    ("trn3", "NKI-INDIRECT-OPERAND", "reciprocal", lambda: nisa.reciprocal(t(16, 16), ind())),
    (
        "trn3",
        "NKI-INDIRECT-OPERAND",
        "tensor_copy",
        lambda: copy(t(16, 16), ind(), engine=ENG.gpsimd),
    ),
]


@pytest.mark.parametrize(
    ("target", "rule", "instruction", "breaks"),
    CASES,
    ids=[f"{i}-{rule}-{name}" for i, (_, rule, name, _) in enumerate(CASES)],
)
def test_a_broken_rule_names_itself(target, rule, instruction, breaks):
    with machine.session(target), pytest.raises(RuleViolationError) as caught:
        breaks()
    message = str(caught.value)
    assert caught.value.rule == rule
    assert message.startswith(f"{instruction}: ")
    assert "; allowed: " in message
    assert RULES[rule].page in message


def test_every_rule_of_the_instructions_is_broken_by_a_test():
    assert set(ISA_RULES) <= {rule for _, rule, _, _ in CASES}


@pytest.mark.parametrize(
    "works",
    [
        lambda: tt(a=ps(2, 4)),
        lambda: tt(b=ps(2, 4)),
        lambda: tt(dst=ps(2, 4)),
        lambda: copy(t(64, 1, at=64), t(64, 1)),
        lambda: copy(t(32, 1, at=96), t(32, 1)),
        lambda: act(op=nl.log, scale=2.0**64),
        lambda: act(op=nl.sin, scale=3.14159),
        lambda: act(op=nl.rsqrt, scale=2.0**-87),
        lambda: nisa.max8(t(1, 8), t(1, 16384)),
        lambda: nisa.bn_stats(t(1, 6), t(1, 512)),
        lambda: gather(t(16, 4096), None, t(16, 256, dtype=U16)),
        lambda: topk(32),
        lambda: nisa.memset(t(2, 4), 2),  # an int for a float tile, as the documentation does
        lambda: shuffle([255] * 32, dst=t(4, 2), src=t(1, 2)),
    ],
)
def test_the_limits_themselves_are_legal(works):
    with machine.session("trn2"):
        works()


def test_views_behind_an_index_work_where_they_are_documented():
    with machine.session("trn3"):
        copy(t(16, 16), ind())
        tt(a=ind(), dst=t(16, 16), b=t(16, 16))
        ts(data=ind(), dst=t(16, 16))
        pred(t(16, 16), t(16, 16), ind(dtype=U8))


def test_relaxed_rules_let_a_kernel_pass():
    with machine.session("trn2", strict=False):
        ts(operand0=t(2, 1, dtype=BF16))
        act(op=nl.log, scale=0.0)
