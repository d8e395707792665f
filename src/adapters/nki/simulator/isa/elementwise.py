# SPDX-License-Identifier: Apache-2.0
"""Copies, constants and elementwise arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import alu, check
from trnport.adapters.nki.simulator.access import read, read_f32, read_int, write
from trnport.adapters.nki.simulator.alu import Array, Op
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.cycles import ISSUE, one_input, two_inputs
from trnport.adapters.nki.simulator.dtypes import FLOATS, INTEGERS, PACKED
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import engine as _engine
from trnport.adapters.nki.simulator.memory import PSUM
from trnport.adapters.nki.simulator.operands import (
    affine,
    number,
    pick_engine,
    quiet,
    require_column,
    same_width,
    scalar_or_column,
    tile,
)
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = [
    "iota",
    "memset",
    "reciprocal",
    "scalar_tensor_tensor",
    "tensor_copy",
    "tensor_scalar",
    "tensor_tensor",
]

_UNKNOWN = _engine.unknown
_WORDS = frozenset({"int32", "uint32"})
_ACT_FORMS = {("multiply", "add"), ("multiply", ""), ("add", "")}


@quiet
def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: Any = _UNKNOWN, name: str | None = None
) -> NkiInstruction:
    """Copy a tile: bit by bit between equal dtypes, through fp32 otherwise.

    Args:
        dst: Tile in SBUF or PSUM.
        src: Tile with equal partitions and elements per partition.
        engine: vector, scalar, gpsimd (no PSUM) or unknown.
        name: Ignored.
    """
    tile("tensor_copy", "dst", dst, indirect=True)
    tile("tensor_copy", "src", src, indirect=True)
    check.require_same_free("tensor_copy", dst, src)
    where = pick_engine("tensor_copy", engine, "vector", ("vector", "scalar", "gpsimd"))
    _reach("tensor_copy", where, dst=dst, src=src)
    if where == "gpsimd" and (dst.lookup is not None or src.lookup is not None):
        tile("tensor_copy", "dst", dst)
        tile("tensor_copy", "src", src)
    values = read(src, "tensor_copy")
    if dst.dtype != src.dtype:
        values = values.astype(np.float32)
    write(dst, values, "tensor_copy")
    count("tensor_copy", where, src.free_size, one_input(where, dst, src))
    return NkiInstruction("tensor_copy")


def _reach(instruction: str, engine: str, **tiles: NkiTensor) -> None:
    if engine != "gpsimd":
        return
    for name, t in tiles.items():
        if t.buffer is PSUM:
            violation("NKI-GPSIMD-PSUM", instruction, name, "in psum with engine gpsimd", "sbuf")


@quiet
def memset(
    dst: NkiTensor, value: Any, engine: Any = _UNKNOWN, name: str | None = None
) -> NkiInstruction:
    """Fill a tile with a constant.

    Args:
        dst: Tile in SBUF or PSUM.
        value: Integer for integer dtypes, float for float dtypes, 0 for packed dtypes.
        engine: vector, gpsimd (no PSUM) or unknown.
        name: Ignored.
    """
    tile("memset", "dst", dst)
    where = pick_engine("memset", engine, "vector", ("vector", "gpsimd"))
    _reach("memset", where, dst=dst)
    _require_kind(dst, value)
    write(dst, np.asarray(value, np.float32 if dst.dtype in FLOATS else np.int64), "memset")
    count("memset", where, dst.free_size)
    return NkiInstruction("memset")


def _require_kind(dst: NkiTensor, value: Any) -> None:
    whole = isinstance(value, int | np.integer)
    if not whole and not number(value):
        violation("NKI-OPERAND", "memset", "value", repr(value), "a compile-time number")
    if dst.dtype in PACKED and value != 0:
        violation("NKI-MEMSET-PACKED", "memset", f"value for {dst.dtype}", repr(value), 0)
    elif dst.dtype in INTEGERS:
        limits = np.iinfo(dst.dtype)
        if not whole or not limits.min <= int(value) <= limits.max:
            limit = f"an integer from {limits.min} to {limits.max}"
            violation("NKI-MEMSET-KIND", "memset", f"value for {dst.dtype}", repr(value), limit)
    elif dst.dtype in FLOATS and whole:
        violation("NKI-MEMSET-FLOAT", "memset", f"value for {dst.dtype}", repr(value), "a float")


@quiet
def iota(
    dst: NkiTensor,
    pattern: Any,
    offset: Any = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """Write offset + partition * channel_multiplier + pattern, in int32 arithmetic.

    Args:
        dst: Tile in SBUF; its free size is the product of the pattern's counts.
        pattern: Up to four [step, count] pairs, slowest first.
        offset: int32 or register.
        channel_multiplier: int32.
        name: Ignored.
    """
    tile("iota", "dst", dst, psum=False)
    write(dst, affine("iota", pattern, offset, channel_multiplier, dst), "iota")
    count("iota", "gpsimd", dst.free_size)
    return NkiInstruction("iota")


@quiet
def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Write 1 / data in fp32.

    Args:
        dst: Tile in SBUF or PSUM.
        data: Tile with equal partitions and elements per partition.
        name: Ignored.
    """
    tile("reciprocal", "dst", dst)
    tile("reciprocal", "data", data)
    check.require_same_free("reciprocal", dst, data)
    write(dst, np.float32(1) / read_f32(data, "reciprocal"), "reciprocal")
    free = data.free_size
    count("reciprocal", "vector", free, max(ISSUE, 8 * free))
    return NkiInstruction("reciprocal")


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
    _require_equal_tiles(me, dst, data1=data1, data2=data2)
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
        write(dst, binary.function(read_f32(data1, me), _shaped(data2, data1, me)), me)
    count(me, where, data1.free_size, two_inputs(where, dst, data1, data2))
    return NkiInstruction(me)


def _require_equal_tiles(instruction: str, dst: NkiTensor, **sources: NkiTensor) -> None:
    for name, source in sources.items():
        if source.shape[0] != dst.shape[0] or source.free_size != dst.free_size:
            value = f"{source.shape[0]} partitions of {source.free_size} elements"
            limit = f"{dst.shape[0]} partitions of {dst.free_size}, as dst"
            violation("NKI-BROADCAST", instruction, name, value, limit)


def _shaped(t: NkiTensor, like: NkiTensor, instruction: str) -> Array:
    values = read_f32(t, instruction)
    return values if t.shape == like.shape else values.reshape(like.shape)


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
    _reach(me, where, **names)
    return where


def _bitvec_tensors(
    instruction: str, op: Op, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor
) -> None:
    same_width(instruction, dst, data1=data1, data2=data2)
    first = alu.bits(instruction, "data1", read(data1, instruction), data1.dtype)
    second = alu.bits(instruction, "data2", read(data2, instruction), data2.dtype)
    write_bits(instruction, dst, op.function(first, second.reshape(first.shape)))


def write_bits(instruction: str, dst: NkiTensor, patterns: Array) -> None:
    if dst.dtype not in INTEGERS:
        violation("NKI-BITVEC-DTYPE", instruction, "dst", dst.dtype, ", ".join(sorted(INTEGERS)))
    write(dst, patterns.view(np.dtype(dst.dtype)), instruction)


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
def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = _UNKNOWN,
    name: str | None = None,
) -> NkiInstruction:
    """Write (data <op0> operand0) <op1> operand1.

    Args:
        dst: Tile in SBUF or PSUM.
        data: Tile with equal partitions and elements per partition.
        op0: First operator; both are arithmetic (fp32) or both bitvec (bit patterns).
        operand0: Number or (P, 1) tile, float32 for arithmetic; None or 0 for unary operators.
        reverse0: Compute operand0 <op0> data.
        op1: Second operator, or None.
        operand1: As operand0, or None without op1.
        reverse1: Compute operand1 <op1> result.
        engine: vector, scalar (on trn2: multiply then add, multiply, or add), gpsimd (rsqrt
            only, no PSUM) or unknown.
        name: Ignored.
    """
    me = "tensor_scalar"
    tile(me, "dst", dst, indirect=True)
    tile(me, "data", data, indirect=True)
    check.require_same_free(me, dst, data)
    first = alu.operator(me, "op0", op0)
    second = None if op1 is None else alu.operator(me, "op1", op1)
    alu.require_one_class(me, first, second)
    if second is None and operand1 is not None:
        violation("NKI-OPERAND", me, "operand1", repr(operand1), "None without op1")
    where = _tensor_scalar_engine(engine, first, second, dst, data)
    if first.kind == "bitvec":
        same_width(me, dst, data=data)
        values = alu.bits(me, "data", read(data, me), data.dtype)
        values = _bitvec_step(me, "operand0", first, values, operand0, reverse0, data)
        if second is not None:
            values = _bitvec_step(me, "operand1", second, values, operand1, reverse1, data)
        write_bits(me, dst, values)
    else:
        values = step(me, "operand0", first, read_f32(data, me), operand0, reverse0, data)
        if second is not None:
            values = step(me, "operand1", second, values, operand1, reverse1, data)
        write(dst, values, me)
    count(me, where, data.free_size, one_input(where, dst, data))
    return NkiInstruction(me)


def _tensor_scalar_engine(
    given: Any, op0: Op, op1: Op | None, dst: NkiTensor, data: NkiTensor
) -> str:
    me = "tensor_scalar"
    if op0.kind == "bitvec":
        return pick_engine(me, given, "vector", ("vector",), f" for {op0.name}")
    alone = op0.name == "rsqrt" and op1 is None
    in_psum = dst.buffer is PSUM or data.buffer is PSUM
    default = "gpsimd" if alone and not in_psum else "vector"
    where = pick_engine(me, given, default, ("vector", "scalar", "gpsimd"))
    form = (op0.name, op1.name if op1 is not None else "")
    if where == "scalar" and form not in _ACT_FORMS:
        limit = "multiply then add, multiply alone, add alone"
        violation("NKI-ENGINE", me, "operators on engine scalar", " then ".join(form), limit)
    if where == "gpsimd" and op0.name != "rsqrt":
        violation("NKI-ENGINE", me, "operators on engine gpsimd", " then ".join(form), "rsqrt")
    _reach(me, where, dst=dst, data=data)
    return where


def step(
    instruction: str,
    name: str,
    op: Op,
    values: Array,
    value: Any,
    reverse: bool,
    data: NkiTensor,
) -> Array:
    """One arithmetic operator of a tensor-scalar instruction, in fp32.

    Args:
        instruction: Named in messages.
        name: The operand.
        op: Arithmetic operator.
        values: float32, of the shape of `data`.
        value: Number or (P, 1) tile; None or 0 for unary operators.
        reverse: Swap the operands.
        data: The instruction's tile.
    """
    if op.kind == "bitvec":
        violation("NKI-OP-CLASS", instruction, name.replace("operand", "op"), op.name, "arithmetic")
    if op.unary:
        if value is not None and not (number(value) and value == 0):
            violation("NKI-OP-UNARY", instruction, f"{name} of {op.name}", repr(value), "None or 0")
        return op.function(values)
    other = scalar_or_column(instruction, name, value, data)
    return op.function(other, values) if reverse else op.function(values, other)


def _bitvec_step(
    instruction: str,
    name: str,
    op: Op,
    values: Array,
    value: Any,
    reverse: bool,
    data: NkiTensor,
) -> Array:
    if op.unary:
        if value is not None and not (number(value) and value == 0):
            violation("NKI-OP-UNARY", instruction, f"{name} of {op.name}", repr(value), "None or 0")
        return op.function(values)
    if isinstance(value, NkiTensor):
        require_column(instruction, name, value, data.shape[0])
        same_width(instruction, data, **{name: value})
        column = alu.bits(instruction, name, read(value, instruction), value.dtype)
        other = column.reshape((-1,) + (1,) * (values.ndim - 1))
    else:
        other = alu.bit_operand(instruction, name, value, values)
    return op.function(other, values) if reverse else op.function(values, other)


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
    _require_equal_tiles(me, dst, data=data, operand1=operand1)
    check.require_not_both_psum(me, data, operand1, "data, operand1")
    first, second = alu.operator(me, "op0", op0), alu.operator(me, "op1", op1)
    if second.kind == "bitvec" or second.unary:
        violation("NKI-OP-CLASS", me, "op1", second.name, "a binary arithmetic operator")
    values = step(me, "operand0", first, read_f32(data, me), operand0, reverse0, data)
    values = alu.apply(second, values, _shaped(operand1, data, me), reverse1)
    write(dst, values, me)
    count(me, "vector", data.free_size, two_inputs("vector", dst, data, operand1))
    return NkiInstruction(me)
