# SPDX-License-Identifier: Apache-2.0
"""Scans: running results along the free dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import alu, check
from trnport.adapters.nki.simulator.access import read_f32, write
from trnport.adapters.nki.simulator.accumulators import accumulate, command, lanes
from trnport.adapters.nki.simulator.alu import Array, Op
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.cycles import one_input, two_inputs
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import reduce_cmd as _cmd
from trnport.adapters.nki.simulator.operands import quiet, scalar_or_column, tile
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.steps import step
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["tensor_scalar_cumulative", "tensor_tensor_scan"]

_RUNNING = ("add", "subtract", "multiply", "maximum", "minimum")
_NARROW = frozenset(
    {
        "bfloat16", "float16", "float32", "float8_e4m3", "float8_e5m2", "float8_e4m3fn",
        "uint8", "uint16", "int8", "int16",
    }
)  # fmt: skip


@quiet
def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = _cmd.reset_reduce,
    name: str | None = None,
) -> NkiInstruction:
    """Write the running op1 of src <op0> imm0.

    Args:
        dst: Tile in SBUF or PSUM, no 32-bit integers.
        src: Tile with equal partitions and elements per partition, no 32-bit integers.
        op0: Arithmetic operator.
        op1: add, subtract, multiply, maximum or minimum.
        imm0: Number or (P, 1) float32 tile.
        imm1: Initial value with load_reduce, None otherwise.
        reduce_cmd: reset_reduce, reduce or load_reduce.
        name: Ignored.
    """
    me = "tensor_scalar_cumulative"
    tile(me, "dst", dst, indirect=True)
    tile(me, "src", src, indirect=True)
    check.require_same_free(me, dst, src)
    check.require_dtype(me, "dst", dst, _NARROW)
    check.require_dtype(me, "src", src, _NARROW)
    first = alu.operator(me, "op0", op0)
    running = alu.reduction(me, "op1", op1, _RUNNING)
    cmd = command(me, reduce_cmd, ("reset_reduce", "reduce", "load_reduce"))
    if (imm1 is not None) != (cmd == "load_reduce"):
        limit = "a value with load_reduce, None otherwise"
        violation("NKI-REDUCE-CMD", me, f"imm1 with {cmd}", repr(imm1), limit)
    init = None if imm1 is None else scalar_or_column(me, "imm1", imm1, src)
    values = step(me, "imm0", first, read_f32(src, me), imm0, False, src)
    held = lanes("vector", src)
    if cmd == "reset_reduce":
        accumulate(me, "reset", running, held, values)
    elif cmd == "load_reduce":
        held.set(np.asarray(init, np.float32).reshape(-1))
    else:
        held.require_defined(me)
    results = _running(running, values.reshape(len(values), -1), held.values)
    held.values[...] = results[:, -1]
    write(dst, results, me)
    count(me, "vector", src.free_size, one_input("vector", dst, src))
    return NkiInstruction(me)


def _running(op: Op, values: Array, start: Array) -> Array:
    """Results of state = op(value, state), [P, F]."""
    if op.name != "subtract":
        assert op.reducer is not None
        joined = np.concatenate([start.reshape(-1, 1), values], axis=1)
        return op.reducer.accumulate(joined, axis=1)[:, 1:]
    results, state = np.empty_like(values), start
    for f in range(values.shape[1]):
        state = values[:, f] - state
        results[:, f] = state
    return results


@quiet
def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Write the recurrence state = (data0 <op0> state) <op1> data1, in fp32.

    Args:
        dst: Tile in SBUF or PSUM.
        data0: Tile with equal partitions and elements per partition.
        data1: The same; not both in PSUM.
        initial: Number or (P, 1) tile.
        op0: Binary arithmetic operator.
        op1: Binary arithmetic operator.
        reverse0: Compute state <op0> data0.
        reverse1: Compute data1 <op1> result.
        name: Ignored.
    """
    me = "tensor_tensor_scan"
    tile(me, "dst", dst)
    for label, t in (("data0", data0), ("data1", data1)):
        tile(me, label, t)
        check.require_same_free(me, t, dst, label)
    check.require_not_both_psum(me, data0, data1, "data0, data1")
    first, second = alu.operator(me, "op0", op0), alu.operator(me, "op1", op1)
    for label, op in (("op0", first), ("op1", second)):
        if op.kind == "bitvec" or op.unary:
            violation("NKI-OP-CLASS", me, label, op.name, "a binary arithmetic operator")
    partitions = dst.shape[0]
    # Columns first: the recurrence then works on contiguous rows.
    left = read_f32(data0, me).reshape(partitions, -1).T.copy()
    right = read_f32(data1, me).reshape(partitions, -1).T.copy()
    state = scalar_or_column(me, "initial", initial, dst, ()).reshape(-1)
    results = np.empty_like(left)
    for f in range(len(left)):
        state = alu.apply(first, left[f], state, reverse0)
        state = alu.apply(second, state, right[f], reverse1)
        results[f] = state
    write(dst, results.T, me)
    count(me, "vector", dst.free_size, two_inputs("vector", dst, data0, data1))
    return NkiInstruction(me)
