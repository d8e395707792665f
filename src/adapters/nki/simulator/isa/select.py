# SPDX-License-Identifier: Apache-2.0
"""Selections between a tile and something else, by a predicate tile, a pattern or a range."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import alu, check
from trnport.adapters.nki.simulator.access import read, read_f32, write, write_where
from trnport.adapters.nki.simulator.accumulators import accumulate, command, lanes, poison
from trnport.adapters.nki.simulator.alu import Array, Op
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.dtypes import FLOATS, cast
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import reduce_cmd as _cmd
from trnport.adapters.nki.simulator.operands import (
    affine,
    number,
    quiet,
    require_column,
    scalar_or_column,
    tile,
    whole_number,
)
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["affine_select", "range_select", "select_reduce", "tensor_copy_predicated"]

_FP32_MIN = float(np.finfo(np.float32).min)
_RANGE_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
_COMPARISONS = (*_RANGE_COMPARISONS, "not_equal")
_COMMANDS = ("idle", "reduce", "reset_reduce")
_MAXIMUM = "maximum"


@quiet
def tensor_copy_predicated(
    dst: NkiTensor,
    src: Any,
    predicate: NkiTensor,
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Copy `src` to `dst` where the predicate is not zero; the rest of `dst` stays.

    Args:
        dst: Tile in SBUF or PSUM.
        src: Number, or tile of dst's dtype; not in PSUM together with the predicate.
        predicate: uint8, uint16 or uint32 tile.
        reverse_pred: Copy where the predicate is zero.
        name: Ignored.
    """
    me = "tensor_copy_predicated"
    tile(me, "dst", dst, indirect=True)
    tile(me, "predicate", predicate, indirect=True)
    check.require_dtype(me, "predicate", predicate, ("uint8", "uint16", "uint32"))
    check.require_same_free(me, predicate, dst, "predicate")
    where = (read(predicate, me) != 0).reshape(dst.shape) != bool(reverse_pred)
    if isinstance(src, NkiTensor):
        tile(me, "src", src)
        check.require_same_free(me, src, dst, "src")
        check.require_same_dtype(me, src, dst, "src")
        check.require_not_both_psum(me, src, predicate, "src, predicate")
        values = read(src, me).reshape(dst.shape)
    elif number(src):
        values = np.asarray(src, np.float32 if dst.dtype in FLOATS else np.int64)
        values = np.broadcast_to(cast(values, dst.dtype, dst.storage.precise), dst.shape)
    else:
        violation("NKI-OPERAND", me, "src", repr(src), "a number or a tile")
    if dst.lookup is None:
        write_where(dst, values, where, me)
    else:
        write(dst, np.where(where, values, read(dst, me)), me)
    count(me, "vector", dst.free_size, 2 * dst.free_size)
    return NkiInstruction(me)


@quiet
def affine_select(
    dst: NkiTensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Any = "equal",
    offset: Any = 0,
    name: str | None = None,
) -> NkiInstruction:
    """Select by comparing offset + partition * channel_multiplier + pattern with 0.

    Args:
        dst: Tile in SBUF.
        pattern: Up to four [step, count] pairs, slowest first.
        channel_multiplier: int32.
        on_true_tile: Tile in SBUF with equal partitions and elements per partition.
        on_false_value: Number, taken as float32.
        cmp_op: Comparison of the affine value with 0.
        offset: int32 or register.
        name: Ignored.
    """
    me = "affine_select"
    tile(me, "dst", dst, psum=False)
    tile(me, "on_true_tile", on_true_tile, psum=False)
    check.require_same_free(me, on_true_tile, dst, "on_true_tile")
    if not number(on_false_value):
        violation("NKI-OPERAND", me, "on_false_value", repr(on_false_value), "a number")
    compare = _comparison(me, "cmp_op", cmp_op, _COMPARISONS)
    values = affine(me, pattern, offset, channel_multiplier, dst)
    where = (compare.function(values, np.int32(0)) != 0).reshape(dst.shape)
    kept = read(on_true_tile, me).reshape(dst.shape)
    if on_true_tile.dtype != dst.dtype:
        kept = kept.astype(np.float32)
    precise = dst.storage.precise
    other = cast(np.asarray(on_false_value, np.float32), dst.dtype, precise)
    write(dst, np.where(where, cast(kept, dst.dtype, precise), other), me)
    count(me, "gpsimd", dst.free_size)
    return NkiInstruction(me)


def _comparison(instruction: str, parameter: str, op: Any, allowed: tuple[str, ...]) -> Op:
    found = alu.operator(instruction, parameter, op)
    if found.name not in allowed:
        violation("NKI-COMPARE", instruction, parameter, found.name, ", ".join(allowed))
    return found


@quiet
def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: Any = _cmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = _MAXIMUM,
    range_start: int = 0,
    on_false_value: float = _FP32_MIN,
    name: str | None = None,
) -> NkiInstruction:
    """Keep elements whose index satisfies two bounds, fill the rest, and take the maximum.

    Args:
        dst: Tile in SBUF or PSUM.
        on_true_tile: Float tile with equal partitions and elements per partition.
        comp_op0: Comparison of the index with bound0.
        comp_op1: Comparison of the index with bound1; both must hold.
        bound0: (P, 1) float32 tile.
        bound1: (P, 1) float32 tile.
        reduce_cmd: idle, reduce or reset_reduce.
        reduce_res: (P, 1) tile that takes the accumulators afterwards.
        reduce_op: `nl.maximum`.
        range_start: Index of the first free element.
        on_false_value: The smallest fp32.
        name: Ignored.
    """
    me = "range_select"
    check.require_generation(me, 3)
    tile(me, "dst", dst)
    tile(me, "on_true_tile", on_true_tile)
    check.require_same_free(me, on_true_tile, dst, "on_true_tile")
    check.require_dtype(me, "on_true_tile", on_true_tile, FLOATS)
    first = _comparison(me, "comp_op0", comp_op0, _RANGE_COMPARISONS)
    second = _comparison(me, "comp_op1", comp_op1, _RANGE_COMPARISONS)
    partitions, free = dst.shape[0], dst.free_size
    if not number(on_false_value) or np.float32(on_false_value) != np.float32(_FP32_MIN):
        violation("NKI-FILL-VALUE", me, "on_false_value", repr(on_false_value), _FP32_MIN)
    limits = (0, 2**24 - free)
    start = whole_number(me, "range_start", range_start, limits, "NKI-INDEX-RANGE")
    index = np.arange(start, start + free, dtype=np.float32)
    where = np.ones((partitions, free), np.bool_)
    for label, bound, op in (("bound0", bound0, first), ("bound1", bound1, second)):
        require_column(me, label, bound, partitions)
        check.require_dtype(me, label, bound, ("float32",))
        where &= op.function(index, read_f32(bound, me).reshape(-1, 1)) != 0
    values = read_f32(on_true_tile, me).reshape(partitions, free)
    values = np.where(where, values, np.float32(_FP32_MIN))
    write(dst, values, me)
    _reduce_maximum(me, on_true_tile, values, reduce_op, reduce_res, reduce_cmd)
    count(me, "vector", free)
    return NkiInstruction(me)


@quiet
def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = _cmd.idle,
    reduce_op: Any = _MAXIMUM,
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Select between a tile and a number or column by a predicate, and take the maximum.

    Args:
        dst: Tile in SBUF or PSUM.
        predicate: int8, uint8, int16 or uint16 tile; not in PSUM together with `on_true`.
        on_true: Tile of any dtype but tfloat32, int32 and uint32.
        on_false: Number or (P, 1) tile.
        reduce_res: (P, 1) float tile that takes the accumulators afterwards.
        reduce_cmd: idle, reduce or reset_reduce.
        reduce_op: `nl.maximum`.
        reverse_pred: Select where the predicate is zero.
        name: Ignored.
    """
    me = "select_reduce"
    tile(me, "dst", dst)
    for label, t in (("predicate", predicate), ("on_true", on_true)):
        tile(me, label, t)
        check.require_same_free(me, t, dst, label)
    check.require_not_both_psum(me, on_true, predicate, "on_true, predicate")
    check.require_dtype(me, "predicate", predicate, ("int8", "uint8", "int16", "uint16"))
    if on_true.dtype in {"tfloat32", "int32", "uint32"}:
        limit = "any but tfloat32, int32, uint32"
        violation("NKI-DTYPE", me, "on_true", on_true.dtype, limit)
    where = (read(predicate, me) != 0).reshape(dst.shape) != bool(reverse_pred)
    other = scalar_or_column(me, "on_false", on_false, dst, ())
    values = np.where(where, read_f32(on_true, me).reshape(dst.shape), other)
    write(dst, values, me)
    _reduce_maximum(me, dst, values, reduce_op, reduce_res, reduce_cmd)
    count(me, "vector", dst.free_size, 2 * dst.free_size)
    return NkiInstruction(me)


def _reduce_maximum(
    me: str,
    data: NkiTensor,
    values: Array,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    reduce_cmd: Any,
) -> None:
    """The vector engine's accumulators: run the command, then read them out."""
    op = alu.reduction(me, "reduce_op", reduce_op, (_MAXIMUM,))
    cmd = command(me, reduce_cmd, _COMMANDS)
    if cmd == "idle":
        poison("vector")
    held = lanes("vector", data)
    if cmd != "idle":
        accumulate(me, cmd, op, held, values)
    if reduce_res is not None:
        require_column(me, "reduce_res", reduce_res, data.shape[0])
        check.require_dtype(me, "reduce_res", reduce_res, FLOATS)
        write(reduce_res, held.column(me), me)
