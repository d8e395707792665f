# SPDX-License-Identifier: Apache-2.0
"""`nki.language`: names, creation of tensors, loops, and the few helpers kernels need."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.simulator import machine, memory, ops
from trnport.adapters.nki.simulator.dtypes import NAMES, dtype_name
from trnport.adapters.nki.simulator.handles import NKIObject as NKIObject
from trnport.adapters.nki.simulator.memory import HBM, PSUM, SBUF, SHARED_HBM
from trnport.adapters.nki.simulator.memory import MemoryRegion as MemoryRegion
from trnport.adapters.nki.simulator.rules import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor as NkiTensor
from trnport.adapters.nki.simulator.views import DynamicSlice

sbuf, psum, hbm, private_hbm, shared_hbm = SBUF, PSUM, HBM, HBM, SHARED_HBM
bool_ = "bool"
globals().update({name: name for name in NAMES if name != "bool"})
globals().update(
    {name: ops.Op(name) for name in (*ops.BINARY, *ops.UNARY, *ops.REDUCTIONS, *ops.OTHERS)}
)


def ndarray(
    shape: Any, dtype: Any, buffer: Any = SBUF, name: str = "", address: Any = None
) -> NkiTensor:
    """Allocate an uninitialized tensor.

    Args:
        shape: Positive sizes; on chip the first is the partition dimension.
        dtype: NKI dtype.
        buffer: `nl.sbuf`, `nl.psum`, `nl.hbm` or `nl.shared_hbm`.
        name: For messages.
        address: (partition, byte offset) on chip; None lets the allocator choose.
    """
    sizes = tuple([int(size) for size in shape])
    kind = dtype_name(dtype)
    region = MemoryRegion(buffer) if isinstance(buffer, str) else buffer
    storage = memory.allocate(sizes, kind, region, name, address)
    return NkiTensor(sizes, kind, storage, region, name)


def ds(start: int, size: int) -> DynamicSlice:
    """Return the slice of `size` elements from `start`."""
    return DynamicSlice(start, size)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Alias of `range` (deprecated in NKI)."""
    return range(start) if stop is None else range(start, stop, step)


sequential_range = static_range = affine_range


def program_id(axis: int = 0) -> int:
    """Return the core's index in the launch."""
    _axis("program_id", axis)
    return machine.current().index


def num_programs(axes: int = 0) -> int:
    """Return the number of cores in the launch."""
    _axis("num_programs", axes)
    return machine.current().lnc


def program_ndim() -> int:
    """Return the dimensions of the launch grid: 1 with two cores, else 0."""
    return 1 if machine.current().lnc > 1 else 0


def _axis(function: str, axis: Any) -> None:
    if axis not in {0, None}:
        violation("NKI-PARAMETER", f"nl.{function}", "axis", axis, "0: the grid has one axis")
