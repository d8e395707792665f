# SPDX-License-Identifier: Apache-2.0
"""Activation functions on the scalar engine, and the exponential of the vector engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import alu, check
from trnport.adapters.nki.simulator.access import read_f32, write
from trnport.adapters.nki.simulator.accumulators import accumulate, command, lanes, poison
from trnport.adapters.nki.simulator.alu import Array, Op
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.cycles import ISSUE
from trnport.adapters.nki.simulator.functions import activate, activation_name
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import reduce_cmd as _cmd
from trnport.adapters.nki.simulator.operands import (
    number,
    quiet,
    require_column,
    scalar_or_column,
    tile,
)
from trnport.adapters.nki.simulator.ops import op_name
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["activate2", "activation", "activation_reduce", "exponential"]

_BIASES = (
    "float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "float8_e4m3fn",
    "int8", "int16", "int32", "uint8", "uint16", "uint32",
)  # fmt: skip
_SCALAR_COMMANDS = ("idle", "reset", "reduce", "reset_reduce")
_REDUCTIONS2 = ("add", "maximum", "minimum", "abs_max", "abs_min")
_PAIRS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)
_EXP_SOURCES = frozenset(
    {
        "float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32",
        "int8", "int16", "int32", "uint8", "uint16", "uint32",
    }
)  # fmt: skip
_EXP_RESULTS = (_EXP_SOURCES - {"uint32"}) | {"tfloat32"}
_EXP_SUMS = frozenset({"float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "tfloat32"})


@quiet
def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = _cmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """Write op(data * scale + bias), and sum it into the scalar engine's accumulators.

    Args:
        dst: Tile in SBUF or PSUM.
        op: Activation function.
        data: Tile with equal partitions and elements per partition.
        bias: Number, (P, 1) tile of any dtype but tfloat32, or None.
        scale: Number or (P, 1) float32 tile.
        reduce_op: `nl.add`; needed when `reduce_cmd` reduces.
        reduce_res: (P, 1) tile that takes the accumulators afterwards.
        reduce_cmd: idle, reset, reduce or reset_reduce.
        name: Ignored.
    """
    return _activation("activation", dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd)


@quiet
def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> NkiInstruction:
    """Run `activation` with reset_reduce.

    Args:
        dst: As in `activation`.
        op: As in `activation`.
        data: As in `activation`.
        reduce_op: `nl.add`.
        reduce_res: (P, 1) tile that takes the sums, or None.
        bias: As in `activation`.
        scale: As in `activation`.
        name: Ignored.
    """
    cmd = _cmd.reset_reduce
    return _activation("activation_reduce", dst, op, data, bias, scale, reduce_op, reduce_res, cmd)


def _activation(
    me: str,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any,
    scale: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    reduce_cmd: Any,
) -> NkiInstruction:
    _tiles(me, dst, data)
    function = activation_name(me, op)
    values = read_f32(data, me)
    if not (number(scale) and scale == 1):
        values = values * scalar_or_column(me, "scale", scale, data)
    if bias is not None and not (number(bias) and bias == 0):
        values = values + scalar_or_column(me, "bias", bias, data, _BIASES)
    values = activate(me, function, values)
    write(dst, values, me)
    _reduce(me, data, values, reduce_op, reduce_res, reduce_cmd, ("add",))
    return NkiInstruction(me)


def _tiles(instruction: str, dst: NkiTensor, data: NkiTensor) -> None:
    tile(instruction, "dst", dst, indirect=True)
    tile(instruction, "data", data, indirect=True)
    check.require_same_free(instruction, dst, data)


def _reduce(
    me: str,
    data: NkiTensor,
    values: Array,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    reduce_cmd: Any,
    legal: tuple[str, ...],
) -> None:
    """The scalar engine's accumulators: run the command, then read them out."""
    cmd = command(me, reduce_cmd, _SCALAR_COMMANDS)
    op = _reduction(me, reduce_op, cmd, legal)
    if reduce_res is not None:
        require_column(me, "reduce_res", reduce_res, data.shape[0])
    held = lanes("scalar", data)
    if op is not None and cmd != "idle":
        accumulate(me, cmd, op, held, values)
    free = data.free_size
    if reduce_res is not None:
        write(reduce_res, held.column(me), me)
        free += ISSUE
    count(me, "scalar", data.free_size, free)


def _reduction(me: str, reduce_op: Any, cmd: str, legal: tuple[str, ...]) -> Op | None:
    if reduce_op is not None:
        return alu.reduction(me, "reduce_op", reduce_op, legal)
    if cmd in {"reduce", "reset_reduce"}:
        violation("NKI-REDUCE-CMD", me, "reduce_op", f"None with {cmd}", ", ".join(legal))
    return alu.operator(me, "reduce_op", "add")


@quiet
def activate2(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = _cmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """Write op((data <op0> imm0) <op1> imm1), with an optional reduction; NeuronCore-v4.

    Args:
        dst: Tile in SBUF or PSUM.
        op: Activation function, or `nl.prelu`.
        data: Tile with equal partitions and elements per partition.
        imm0: Number or (P, 1) tile.
        imm1: Number or (P, 1) tile; tiles of one dtype.
        op0: multiply, add, subtract or bypass.
        op1: add or subtract after multiply, else bypass.
        relu_param: Slope of `nl.prelu` for negative inputs; number or (P, 1) tile.
        reverse0: Compute imm0 <op0> data.
        reverse1: Compute imm1 <op1> result.
        reduce_op: add, maximum, minimum, abs_max or abs_min.
        reduce_res: (P, 1) tile that takes the accumulators afterwards.
        reduce_cmd: idle, reset, reduce or reset_reduce.
        name: Ignored.
    """
    me = "activate2"
    check.require_generation(me, 4)
    _tiles(me, dst, data)
    function = activation_name(me, op, ("prelu",))
    names = tuple("bypass" if each is None else op_name(each) for each in (op0, op1))
    if names not in _PAIRS:
        limit = "; ".join(" then ".join(pair) for pair in _PAIRS)
        violation("NKI-ACT-PAIR", me, "op0, op1", " then ".join(names), limit)
    for index, (used, reverse) in enumerate(zip(names, (reverse0, reverse1), strict=True)):
        if reverse and used == "bypass":
            violation("NKI-ACT-PAIR", me, f"reverse{index}", True, f"False without op{index}")
    both = isinstance(imm0, NkiTensor) and isinstance(imm1, NkiTensor)
    if both and imm0.dtype != imm1.dtype:
        violation("NKI-DTYPE", me, "imm1", imm1.dtype, f"{imm0.dtype}, as imm0")
    values = read_f32(data, me)
    steps = ((names[0], "imm0", imm0, reverse0), (names[1], "imm1", imm1, reverse1))
    for used, label, imm, reverse in steps:
        if used != "bypass":
            other = scalar_or_column(me, label, imm, data, ())
            values = alu.apply(alu.operator(me, "op", used), values, other, reverse)
    if function == "prelu":
        slope = scalar_or_column(me, "relu_param", relu_param, data, ())
        values = np.where(values > 0, values, values * slope)
    else:
        values = activate(me, function, values)
    write(dst, values, me)
    _reduce(me, data, values, reduce_op, reduce_res, reduce_cmd, _REDUCTIONS2)
    return NkiInstruction(me)


@quiet
def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = _cmd.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> NkiInstruction:
    """Write exp(src - max_value) on the vector engine, and sum it; NeuronCore-v4.

    Args:
        dst: Tile of at most 4 dimensions.
        src: Tile with equal partitions and elements per partition.
        max_value: Number or (P, 1) float32 tile.
        reduce_res: (P, 1) float tile that takes the accumulators afterwards.
        reduce_cmd: idle, reset_reduce, reduce or load_reduce.
        reduce_init: Number or (P, 1) float32 tile, with load_reduce.
        name: Ignored.
    """
    me = "exponential"
    check.require_generation(me, 4)
    _tiles(me, dst, src)
    for label, t in (("dst", dst), ("src", src)):
        if t.ndim > 4:
            violation("NKI-RANK-LIMIT", me, label, f"{t.ndim} dimensions", "at most 4")
    check.require_dtype(me, "src", src, _EXP_SOURCES)
    check.require_dtype(me, "dst", dst, _EXP_RESULTS)
    cmd = command(me, reduce_cmd, ("idle", "reset_reduce", "reduce", "load_reduce"))
    if cmd != "load_reduce" and not (number(reduce_init) and reduce_init == 0):
        violation("NKI-REDUCE-CMD", me, f"reduce_init with {cmd}", repr(reduce_init), "0.0")
    values = np.exp(read_f32(src, me) - scalar_or_column(me, "max_value", max_value, src))
    write(dst, values, me)
    if cmd == "idle":
        poison("vector")
    held = lanes("vector", src)
    if cmd != "idle":
        init = scalar_or_column(me, "reduce_init", reduce_init, src)
        accumulate(me, cmd, alu.operator(me, "op", "add"), held, values, init)
    if reduce_res is not None:
        require_column(me, "reduce_res", reduce_res, src.shape[0])
        check.require_dtype(me, "reduce_res", reduce_res, _EXP_SUMS)
        write(reduce_res, held.column(me), me)
    count(me, "vector", src.free_size, src.free_size / 4)
    return NkiInstruction(me)
