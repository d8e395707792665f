# SPDX-License-Identifier: Apache-2.0
"""Parts that tensor-scalar and tensor-tensor instructions share."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import alu
from trnport.adapters.nki.simulator.access import read, read_f32, write
from trnport.adapters.nki.simulator.alu import Array, Op
from trnport.adapters.nki.simulator.dtypes import INTEGERS
from trnport.adapters.nki.simulator.memory import PSUM
from trnport.adapters.nki.simulator.operands import (
    number,
    require_column,
    same_width,
    scalar_or_column,
)
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["bitvec_step", "require_equal_tiles", "require_reach", "shaped", "step", "write_bits"]


def require_reach(instruction: str, engine: str, **tiles: NkiTensor) -> None:
    """Refuse tiles in PSUM for the GpSimd engine."""
    if engine != "gpsimd":
        return
    for name, t in tiles.items():
        if t.buffer is PSUM:
            violation("NKI-GPSIMD-PSUM", instruction, name, "in psum with engine gpsimd", "sbuf")


def require_equal_tiles(instruction: str, dst: NkiTensor, **sources: NkiTensor) -> None:
    """Refuse sources that would have to broadcast."""
    for name, source in sources.items():
        if source.shape[0] != dst.shape[0] or source.free_size != dst.free_size:
            value = f"{source.shape[0]} partitions of {source.free_size} elements"
            limit = f"{dst.shape[0]} partitions of {dst.free_size}, as dst"
            violation("NKI-BROADCAST", instruction, name, value, limit)


def shaped(t: NkiTensor, like: NkiTensor, instruction: str) -> Array:
    """Values of a tile as fp32 in the shape of another."""
    values = read_f32(t, instruction)
    return values if t.shape == like.shape else values.reshape(like.shape)


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


def bitvec_step(
    instruction: str,
    name: str,
    op: Op,
    values: Array,
    value: Any,
    reverse: bool,
    data: NkiTensor,
) -> Array:
    """One bitvec operator of a tensor-scalar instruction; the arguments are those of `step`."""
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


def write_bits(instruction: str, dst: NkiTensor, patterns: Array) -> None:
    """Write bit patterns, [P, F...], to an integer tile."""
    if dst.dtype not in INTEGERS:
        violation("NKI-BITVEC-DTYPE", instruction, "dst", dst.dtype, ", ".join(sorted(INTEGERS)))
    write(dst, patterns.view(np.dtype(dst.dtype)), instruction)
