# SPDX-License-Identifier: Apache-2.0
"""Reductions along the free dimensions and across partitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import alu, check
from trnport.adapters.nki.simulator.access import read, read_f32, write
from trnport.adapters.nki.simulator.accumulators import accumulate, command, lanes
from trnport.adapters.nki.simulator.alu import Op
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.cycles import one_input
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import reduce_cmd as _cmd
from trnport.adapters.nki.simulator.operands import (
    quiet,
    require_column,
    same_width,
    scalar_or_column,
    tile,
)
from trnport.adapters.nki.simulator.ops import op_name
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.steps import step, write_bits
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["tensor_partition_reduce", "tensor_reduce", "tensor_scalar_reduce"]

_ACROSS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")


@quiet
def tensor_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Reduce the last free dimensions.

    Args:
        dst: Tile in SBUF or PSUM with the remaining elements.
        op: Legal reduction; bitvec on integers, or arithmetic in fp32.
        data: Tile in SBUF or PSUM.
        axis: int or sequence of ints: the last dimensions, never 0.
        negate: Multiply the result by -1; arithmetic only.
        keepdims: dst keeps the reduced dimensions with size 1.
        name: Ignored.
    """
    me = "tensor_reduce"
    tile(me, "dst", dst, indirect=True)
    tile(me, "data", data, indirect=True)
    reducer = alu.reduction(me, "op", op)
    axes = _axes(data, axis)
    _require_result_shape(dst, data, axes, keepdims)
    if reducer.kind == "bitvec":
        if negate:
            violation("NKI-OP-CLASS", me, f"op {reducer.name} with negate", True, "arithmetic")
        same_width(me, dst, data=data)
        patterns = alu.bits(me, "data", read(data, me), data.dtype)
        write_bits(me, dst, alu.reduce_free(reducer, patterns, axes))
    else:
        values = alu.reduce_free(reducer, read_f32(data, me), axes)
        write(dst, -values if negate else values, me)
    count(me, "vector", data.free_size)
    return NkiInstruction(me)


def _axes(data: NkiTensor, axis: Any) -> tuple[int, ...]:
    given = (axis,) if isinstance(axis, int | np.integer) else axis
    rank = data.ndim
    if not isinstance(given, tuple | list) or not all(isinstance(a, int) for a in given):
        violation("NKI-REDUCE-AXIS", "tensor_reduce", "axis", axis, "an int or a tuple of ints")
    axes = tuple(sorted(int(a) + rank if a < 0 else int(a) for a in given))
    legal = axes == tuple(range(rank - len(axes), rank)) and axes and axes[0] > 0
    if not legal:
        limit = f"the last free dimensions of a tile of {rank} dimensions, not 0"
        violation("NKI-REDUCE-AXIS", "tensor_reduce", "axis", axis, limit)
    return axes


def _require_result_shape(
    dst: NkiTensor, data: NkiTensor, axes: tuple[int, ...], keepdims: bool
) -> None:
    kept = data.shape[: axes[0]]
    wanted = (*kept, *[1] * len(axes)) if keepdims else kept
    left = 1
    for size in kept[1:]:
        left *= size
    if dst.shape[0] != data.shape[0] or dst.free_size != left:
        limit = f"{wanted if len(wanted) > 1 else (*wanted, 1)} from {data.shape} over {axes}"
        violation("NKI-SHAPE", "tensor_reduce", "dst", dst.shape, limit)


@quiet
def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: Any = _cmd.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Write data <op0> operand0 and reduce it over all free elements.

    Args:
        dst: Tile in SBUF or PSUM.
        data: Tile with equal partitions and elements per partition.
        op0: Arithmetic operator.
        operand0: Number or (P, 1) float32 tile; None or 0 for unary operators.
        reduce_op: add, multiply, maximum or minimum.
        reduce_res: (P, 1) tile that takes the accumulators afterwards.
        reverse0: Not supported by the instruction yet.
        reduce_cmd: reset_reduce, reduce or load_reduce.
        reduce_init: Number or (P, 1) float32 tile, with load_reduce only.
        reduce_res_negate: Negate what `reduce_res` takes.
        name: Ignored.
    """
    me = "tensor_scalar_reduce"
    tile(me, "dst", dst, indirect=True)
    tile(me, "data", data, indirect=True)
    check.require_same_free(me, dst, data)
    first = alu.operator(me, "op0", op0)
    reducer = alu.reduction(me, "reduce_op", reduce_op, ("add", "multiply", "maximum", "minimum"))
    if reverse0:
        violation("NKI-PARAMETER", me, "reverse0", reverse0, "False: not supported yet")
    cmd = command(me, reduce_cmd, ("reset_reduce", "reduce", "load_reduce"))
    init = _initial(me, "reduce_init", reduce_init, cmd, data)
    values = step(me, "operand0", first, read_f32(data, me), operand0, False, data)
    write(dst, values, me)
    held = lanes("vector", data)
    accumulate(me, cmd, reducer, held, values, init)
    if reduce_res is not None:
        require_column(me, "reduce_res", reduce_res, data.shape[0])
        column = held.column(me)
        write(reduce_res, -column if reduce_res_negate else column, me)
    count(me, "vector", data.free_size, one_input("vector", dst, data))
    return NkiInstruction(me)


def _initial(instruction: str, name: str, value: Any, cmd: str, data: NkiTensor) -> Any:
    """The initial accumulator value, which belongs to load_reduce alone."""
    if (value is not None) != (cmd == "load_reduce"):
        limit = "a value with load_reduce, None otherwise"
        violation("NKI-REDUCE-CMD", instruction, f"{name} with {cmd}", repr(value), limit)
    return None if value is None else scalar_or_column(instruction, name, value, data)


@quiet
def tensor_partition_reduce(
    dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Reduce across partitions.

    Args:
        dst: Tile in SBUF with one partition.
        op: add, average, max, bitwise_or or bitwise_and.
        data: Tile in SBUF with as many elements per partition.
        name: Ignored.
    """
    me = "tensor_partition_reduce"
    tile(me, "dst", dst, psum=False)
    tile(me, "data", data, psum=False)
    if dst.shape[0] != 1 or dst.free_size != data.free_size:
        violation("NKI-SHAPE", me, "dst", dst.shape, f"1 partition of {data.free_size} elements")
    name_of = op_name(op)
    average = name_of in {"average", "mean"}
    reducer = _across(me, "add" if average else name_of)
    if reducer.kind == "bitvec":
        same_width(me, dst, data=data)
        patterns = alu.bits(me, "data", read(data, me), data.dtype)
        assert reducer.reducer is not None
        write_bits(me, dst, reducer.reducer.reduce(patterns, axis=0))
    else:
        assert reducer.reducer is not None
        values = reducer.reducer.reduce(read_f32(data, me), axis=0)
        write(dst, values / np.float32(data.shape[0]) if average else values, me)
    count(me, "gpsimd", data.free_size)
    return NkiInstruction(me)


def _across(instruction: str, name: str) -> Op:
    return alu.reduction(instruction, "op", name, _ACROSS)
