# SPDX-License-Identifier: Apache-2.0
"""Arithmetic between two tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import alu, check
from trnport.adapters.nki.simulator.access import read, read_f32, read_int, write
from trnport.adapters.nki.simulator.alu import Array, Op
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.cycles import two_inputs
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import engine as _engine
from trnport.adapters.nki.simulator.memory import PSUM
from trnport.adapters.nki.simulator.operands import (
    pick_engine,
    quiet,
    same_width,
    tile,
)
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.steps import (
    require_equal_tiles,
    require_reach,
    shaped,
    step,
    write_bits,
)
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["scalar_tensor_tensor", "tensor_tensor"]

_UNKNOWN = _engine.unknown
_WORDS = frozenset({"int32", "uint32"})


@quiet
def tensor_tensor(
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Any,
    engine: Any = _UNKNOWN,
    name: str | None = None,
) -> NkiInstruction:
    """Write data1 <op> data2.

    Arithmetic is fp32, but exact for int32/uint32 throughout on GpSimd, the default for those when
    nothing is in PSUM. Bitvec operators work on bit patterns.

    Args:
        dst: Tile in SBUF or PSUM.
        data1: Tile with equal partitions and elements per partition.
        data2: The same; not both inputs in PSUM.
        op: Binary operator.
        engine: vector, gpsimd (no PSUM) or unknown.
        name: Ignored.
    """
    me = "tensor_tensor"
    tile(me, "dst", dst, indirect=True)
    tile(me, "data1", data1, indirect=True)
    tile(me, "data2", data2)
    require_equal_tiles(me, dst, data1=data1, data2=data2)
    check.require_not_both_psum(me, data1, data2, "data1, data2")
    binary = alu.operator(me, "op", op)
    if binary.unary:
        violation("NKI-OP-CLASS", me, "op", binary.name, "a binary operator")
    where = _tensor_tensor_engine(binary, engine, dst, data1, data2)
    if binary.kind == "bitvec":
        _bitvec_tensors(me, binary, dst, data1, data2)
    elif where == "gpsimd" and {dst.dtype, data1.dtype, data2.dtype} <= _WORDS:
        write(dst, _exact(binary, dst, data1, data2), me)
    else:
        write(dst, binary.function(read_f32(data1, me), shaped(data2, data1, me)), me)
    count(me, where, data1.free_size, two_inputs(where, dst, data1, data2))
    return NkiInstruction(me)


def _tensor_tensor_engine(op: Op, given: Any, *tiles: NkiTensor) -> str:
    """Power runs on GpSimd, bitvec on the vector engine, exact integers on GpSimd by default."""
    me = "tensor_tensor"
    names = dict(zip(("dst", "data1", "data2"), tiles, strict=True))
    if op.name == "power":
        where = pick_engine(me, given, "gpsimd", ("gpsimd",), " for power")
    elif op.kind == "bitvec":
        where = pick_engine(me, given, "vector", ("vector",), f" for {op.name}")
    else:
        words = all(t.dtype in _WORDS for t in tiles)
        in_psum = any(t.buffer is PSUM for t in tiles)
        default = "gpsimd" if words and not in_psum else "vector"
        where = pick_engine(me, given, default, ("vector", "gpsimd"))
    require_reach(me, where, **names)
    return where


def _bitvec_tensors(
    instruction: str, op: Op, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor
) -> None:
    same_width(instruction, dst, data1=data1, data2=data2)
    first = alu.bits(instruction, "data1", read(data1, instruction), data1.dtype)
    second = alu.bits(instruction, "data2", read(data2, instruction), data2.dtype)
    write_bits(instruction, dst, op.function(first, second.reshape(first.shape)))


def _exact(op: Op, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor) -> Array:
    """Native 32-bit integer arithmetic; a result beyond 32 bits wraps and is reported."""
    me = "tensor_tensor"
    a, b = read_int(data1, me), read_int(data2, me).reshape(data1.shape)
    if op.name == "power":
        return op.function(a.astype(np.float32), b.astype(np.float32))
    values = op.function(a, b)
    if values.dtype != np.int64:
        return values
    limits = np.iinfo(dst.dtype)
    lost = (values < limits.min) | (values > limits.max)
    if op.name == "multiply" and data1.dtype == data2.dtype == "uint32":
        lost |= a.astype(np.float32) * b.astype(np.float32) > np.float32(2.0**33)
    if lost.any():
        limit = f"{limits.min} to {limits.max}"
        violation("NKI-INT-OVERFLOW", me, f"result of {op.name}", int(values[lost][0]), limit)
        values = values.astype(np.uint32).view(np.dtype(dst.dtype))
    return values


@quiet
def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Write (data <op0> operand0) <op1> operand1 with a tile as operand1, in fp32.

    Args:
        dst: Tile in SBUF or PSUM.
        data: Tile with equal partitions and elements per partition.
        op0: Arithmetic operator.
        operand0: Number or (P, 1) tile.
        op1: Binary arithmetic operator.
        operand1: Tile as `data`; not both in PSUM.
        reverse0: Compute operand0 <op0> data.
        reverse1: Compute operand1 <op1> result.
        name: Ignored.
    """
    me = "scalar_tensor_tensor"
    tile(me, "dst", dst)
    tile(me, "data", data)
    tile(me, "operand1", operand1)
    require_equal_tiles(me, dst, data=data, operand1=operand1)
    check.require_not_both_psum(me, data, operand1, "data, operand1")
    first, second = alu.operator(me, "op0", op0), alu.operator(me, "op1", op1)
    if second.kind == "bitvec" or second.unary:
        violation("NKI-OP-CLASS", me, "op1", second.name, "a binary arithmetic operator")
    values = step(me, "operand0", first, read_f32(data, me), operand0, reverse0, data)
    values = alu.apply(second, values, shaped(operand1, data, me), reverse1)
    write(dst, values, me)
    count(me, "vector", data.free_size, two_inputs("vector", dst, data, operand1))
    return NkiInstruction(me)
