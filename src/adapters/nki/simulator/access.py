# SPDX-License-Identifier: Apache-2.0
"""How instructions read and write tensors.

HOW TO ADD AN INSTRUCTION

Put the function into a module of `simulator/isa/` and list its name in the module's `__all__`:
`simulator.isa` exports what it finds there. An instruction

1. checks its operands with `check` (each check names the instruction and the operand; a rule of its
   own is added with `rules.add(Rule(...))` and reported with `rules.violation(...)`);
2. reads with `read_f32` (or `read_int` for exact integers, `read` for bit copies);
3. computes in float32 with numpy, never in float64;
4. writes with `write`, which casts and rounds;
5. counts with `counters.count(instruction, engine, free elements)`;
6. returns `isa.registers.NkiInstruction("name")`.

    def reciprocal(dst, data, name=None):
        check.require_buffer("reciprocal", "data", data, SBUF, PSUM)
        check.require_same_free("reciprocal", dst, data)
        write(dst, 1.0 / read_f32(data))
        count("reciprocal", "vector", data.free_size)
        return NkiInstruction("reciprocal")

What `read*` returns may share memory with the storage: never modify it. `write` takes a scalar, or
any array with as many elements as the destination.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trnport.adapters.nki.simulator import marks, pattern
from trnport.adapters.nki.simulator.dtypes import FLOATS, Array, cast
from trnport.adapters.nki.simulator.handles import VirtualRegister
from trnport.adapters.nki.simulator.marks import mark
from trnport.adapters.nki.simulator.rules import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

_FLOAT32 = np.dtype(np.float32)


def read(t: NkiTensor, instruction: str = "read") -> Array:
    """Return the values of a tensor in its storage's own dtype.

    Args:
        t: Any view.
        instruction: Named in messages.

    Returns:
        Array of shape `t.shape`; may share memory with the storage.

    Raises:
        RuleViolationError: Memory was never written, or a dynamic index is out of bounds.
    """
    if t.lookup is not None:
        return gather(t, instruction)[0]
    storage = t.storage
    if storage.mask is not None:
        marks.require_written(t, instruction)
    if storage.owners is not None:
        marks.require_own(t, instruction)
    return t.array()


def read_f32(t: NkiTensor, instruction: str = "read") -> npt.NDArray[np.float32]:
    """Return the values of a tensor as float32; see `read`."""
    values = read(t, instruction)
    if values.dtype is _FLOAT32:
        return values
    return values.astype(np.float32)


def read_int(t: NkiTensor, instruction: str = "read") -> npt.NDArray[np.int64]:
    """Return the values of an integer tensor as int64; see `read`."""
    return read(t, instruction).astype(np.int64)


def write(t: NkiTensor, values: Any, instruction: str = "write") -> None:
    """Cast values to the tensor's dtype, store them and mark the memory as written.

    Args:
        t: Any writable view.
        values: Scalar, or array with as many elements as `t`.
        instruction: Named in messages.

    Raises:
        RuleViolationError: The view repeats elements, or a dynamic index is out of bounds.
        ValueError: The number of elements differs.
    """
    values = np.asarray(values)
    if values.ndim and values.shape != t.shape:
        values = values.reshape(t.shape)
    values = _castable(values, t)
    if t.lookup is not None:
        scatter(t, values, instruction)
        return
    mark(t, instruction)
    t.array()[...] = values


def write_where(t: NkiTensor, values: Array, where: Array, instruction: str) -> None:
    """Write only the elements that `where` selects; `t` is static, all shapes are `t.shape`."""
    mark(t, instruction, where=where)
    np.copyto(t.array(), cast(values, t.dtype, t.storage.precise), where=where)


def operand(x: Any, t: NkiTensor, instruction: str = "read") -> npt.NDArray[np.float32]:
    """Return a scalar or a per-partition tile as float32 that broadcasts against `t`.

    Args:
        x: Python number, or tensor of shape (P, 1).
        t: The tensor it is combined with, [P, F...].
        instruction: Named in messages.

    Returns:
        Shape () or (P, 1, ..., 1) with as many dimensions as `t`.
    """
    if isinstance(x, NkiTensor):
        if x.free_size != 1 or x.shape[0] != t.shape[0]:
            violation(
                "NKI-SHAPE", instruction, "operand", x.shape, f"({t.shape[0]}, 1) or a scalar"
            )
        return read_f32(x, instruction).reshape((x.shape[0],) + (1,) * (len(t.shape) - 1))
    return np.asarray(x, np.float32)


def gather(t: NkiTensor, instruction: str, *, skip: bool = False) -> tuple[Array, Array | None]:
    """Read a view whose addresses depend on data.

    Args:
        t: View with a lookup.
        instruction: Named in messages.
        skip: Leave out what is out of bounds instead of reporting it.

    Returns:
        Values of shape `t.shape`, and a bool per row that tells which rows are real; None for all.
    """
    lookup = t.lookup
    if isinstance(lookup, pattern.ScalarLookup):
        static = pattern.shifted(t, _scalar(lookup.index, instruction), instruction, skip=skip)
        if static is None:
            blank = np.zeros(t.shape, t.storage.window(t.dtype, 0, (1,), (1,)).dtype)
            return blank, np.zeros(t.shape[0], bool)
        return read(static, instruction), None
    if isinstance(lookup, pattern.ColumnLookup):
        columns = _columns(lookup, t.shape[1], instruction)
        base = read(lookup.base, instruction)
        return base.reshape(base.shape[0], -1)[:, columns], None
    windows, rows, valid = _rows(t, instruction, skip=skip)
    if t.storage.mask is not None:
        marks.require_rows_written(t, rows if valid is None else rows[valid], instruction)
    if t.storage.owners is not None:
        marks.require_own(t, instruction, rows if valid is None else rows[valid])
    if valid is None:
        return windows[rows], None
    values = np.zeros(t.shape, windows.dtype)
    values[valid] = windows[rows[valid]]
    return values, valid


def scatter(t: NkiTensor, values: Array, instruction: str, *, skip: bool = False) -> None:
    """Write a view whose addresses depend on data; the arguments are those of `gather`."""
    lookup = t.lookup
    values = cast(values, t.dtype, t.storage.precise)
    if isinstance(lookup, pattern.ScalarLookup):
        static = pattern.shifted(t, _scalar(lookup.index, instruction), instruction, skip=skip)
        if static is not None:
            mark(static, instruction)
            static.array()[...] = values
        return
    if isinstance(lookup, pattern.ColumnLookup):
        columns = _columns(lookup, t.shape[1], instruction)
        base = lookup.base
        merged = base.array().reshape(base.shape[0], -1).copy()
        merged[:, columns] = values
        write(base, merged, instruction)
        return
    windows, rows, valid = _rows(t, instruction, skip=skip)
    if valid is not None:
        rows, values = rows[valid], np.broadcast_to(values, t.shape)[valid]
    windows[rows] = values
    marks.mark_rows(t, rows)


def _scalar(index: Any, instruction: str) -> int:
    if isinstance(index, VirtualRegister):
        return index.peek(instruction)
    return int(read(index, instruction).reshape(-1)[0])


def _rows(
    t: NkiTensor, instruction: str, *, skip: bool
) -> tuple[Array, npt.NDArray[np.int64], Array | None]:
    index = read_int(t.lookup.index, instruction)
    rows = index.reshape(index.shape[0], -1).T.reshape(-1)
    count = t.shape[0]
    if len(rows) < count:
        violation("NKI-AP-VECTOR", instruction, "vector_offset", index.shape, f"{count} rows")
    rows = rows[:count]
    windows = pattern.windows(t)
    if len(rows) and (rows.min() < 0 or rows.max() >= len(windows)):
        valid = (rows >= 0) & (rows < len(windows))
        if not skip:
            violation(
                "NKI-OOB", instruction, f"row index of {t}", rows[~valid][0], f"< {len(windows)}"
            )
        return windows, rows, valid
    return windows, rows, None


def _columns(lookup: pattern.ColumnLookup, count: int, instruction: str) -> Array:
    group = 32 if instruction == "nc_matmul" else 16
    index = read_int(lookup.index, instruction)
    index = index.reshape(index.shape[0], -1)
    group = min(group, index.shape[0])
    columns = index[:group].T.reshape(-1)[:count]
    width = lookup.base.free_size
    if len(columns) < count or columns.min() < 0 or columns.max() >= width:
        violation("NKI-OOB", instruction, "index of .indirect()", columns, f"0 to {width - 1}")
    return columns


def _castable(values: Array, t: NkiTensor) -> Array:
    """Return values that plain assignment converts with the right rounding."""
    if t.dtype in FLOATS and t.dtype != "tfloat32":
        return (
            values.astype(np.float32)
            if values.dtype.kind in "iub" or (values.dtype == np.float64)
            else values
        )
    return cast(values, t.dtype, t.storage.precise)
