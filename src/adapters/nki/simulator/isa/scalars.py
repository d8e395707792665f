# SPDX-License-Identifier: Apache-2.0
"""Arithmetic between a tile and numbers or columns."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.simulator import alu, check
from trnport.adapters.nki.simulator.access import read, read_f32, write
from trnport.adapters.nki.simulator.alu import Op
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.cycles import one_input
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
    bitvec_step,
    require_reach,
    step,
    write_bits,
)
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["tensor_scalar"]

_UNKNOWN = _engine.unknown
_GPSIMD_RSQRT = 4  # "NKI engine selection": cycles per element, four times the scalar engine's
_ACT_FORMS = {("multiply", "add"), ("multiply", ""), ("add", "")}


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
        values = bitvec_step(me, "operand0", first, values, operand0, reverse0, data)
        if second is not None:
            values = bitvec_step(me, "operand1", second, values, operand1, reverse1, data)
        write_bits(me, dst, values)
    else:
        values = step(me, "operand0", first, read_f32(data, me), operand0, reverse0, data)
        if second is not None:
            values = step(me, "operand1", second, values, operand1, reverse1, data)
        write(dst, values, me)
    cycles = one_input(where, dst, data)
    count(me, where, data.free_size, _GPSIMD_RSQRT * cycles if where == "gpsimd" else cycles)
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
    require_reach(me, where, dst=dst, data=data)
    return where
