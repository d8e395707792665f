# SPDX-License-Identifier: Apache-2.0
"""`nki.language`: dtype and operator names, tensors, loops, and the few helpers kernels need."""

from __future__ import annotations

import sys
from typing import Any

from trnport.adapters.nki.simulator import creation, loops, machine, ops
from trnport.adapters.nki.simulator.creation import (
    broadcast_to,
    empty_like,
    expand_dims,
    full,
    load,
    load_transpose2d,
    matmul,
    ndarray,
    ones,
    shared_constant,
    shared_identity_matrix,
    store,
    transpose,
    zeros,
    zeros_like,
)
from trnport.adapters.nki.simulator.dtypes import NAMES
from trnport.adapters.nki.simulator.handles import NKIObject
from trnport.adapters.nki.simulator.loops import dynamic_range, fori_loop, no_reorder, while_loop
from trnport.adapters.nki.simulator.memory import HBM, ON_CHIP, PSUM, SBUF, SHARED_HBM, MemoryRegion
from trnport.adapters.nki.simulator.rules import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor
from trnport.adapters.nki.simulator.tile_size import tile_size
from trnport.adapters.nki.simulator.views import DynamicSlice

# What this module takes from others; dtypes and operators join below.
__all__ = [
    "MemoryRegion",
    "NKIObject",
    "NkiTensor",
    "broadcast_to",
    "dynamic_range",
    "empty_like",
    "expand_dims",
    "fori_loop",
    "full",
    "load",
    "load_transpose2d",
    "matmul",
    "ndarray",
    "no_reorder",
    "ones",
    "shared_constant",
    "shared_identity_matrix",
    "store",
    "tile_size",
    "transpose",
    "while_loop",
    "zeros",
    "zeros_like",
]

sbuf, psum, hbm, private_hbm, shared_hbm = SBUF, PSUM, HBM, HBM, SHARED_HBM
affine_range = sequential_range = static_range = loops.affine_range
bool_ = "bool"
globals().update({name: name for name in NAMES if name != "bool"})
globals().update(
    {name: ops.Op(name) for name in (*ops.BINARY, *ops.UNARY, *ops.REDUCTIONS, *ops.OTHERS)}
)
copy = ops.Op("copy", creation.copy)  # the activation's name, and a function


def ds(start: int, size: int) -> DynamicSlice:
    """Return the slice of `size` elements from `start`."""
    return DynamicSlice(start, size)


def program_id(axis: int = 0) -> int:
    """Return the core's index in the launch."""
    _axis("program_id", axis)
    return machine.current().index


def num_programs(axes: Any = 0) -> int:
    """Return the number of cores in the launch."""
    _axis("num_programs", axes)
    return machine.current().lnc


def program_ndim() -> int:
    """Return the dimensions of the launch grid: 1 with two cores, else 0."""
    return 1 if machine.current().lnc > 1 else 0


def _axis(function: str, axis: Any) -> None:
    if axis not in {0, None, (), (0,)}:
        violation("NKI-PARAMETER", f"nl.{function}", "axis", axis, "0: the grid has one axis")


def _buffer(x: Any) -> Any:
    return getattr(x, "buffer", x)


def is_hbm(buffer: Any) -> bool:
    """Tell whether a buffer, or a tensor's buffer, is HBM."""
    return any(_buffer(buffer) == region for region in (HBM, SHARED_HBM))


def is_sbuf(buffer: Any) -> bool:
    """Tell whether a buffer, or a tensor's buffer, is SBUF."""
    return bool(_buffer(buffer) == SBUF)


def is_psum(buffer: Any) -> bool:
    """Tell whether a buffer, or a tensor's buffer, is PSUM."""
    return bool(_buffer(buffer) == PSUM)


def is_on_chip(buffer: Any) -> bool:
    """Tell whether a buffer, or a tensor's buffer, is SBUF or PSUM."""
    return any(_buffer(buffer) == region for region in ON_CHIP)


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tensor at once."""
    sys.stdout.write(creation.printed(print_prefix, tensor))


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"nki.language.{name} does not exist in NKI 0.6 or is not simulated: "
        "write it with nki.isa instructions"
    )
