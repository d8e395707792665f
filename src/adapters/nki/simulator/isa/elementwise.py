# SPDX-License-Identifier: Apache-2.0
"""Copies, constants and reciprocals."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import check
from trnport.adapters.nki.simulator.access import read, read_f32, write
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.cycles import ISSUE, one_input
from trnport.adapters.nki.simulator.dtypes import FLOATS, INTEGERS, PACKED
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import engine as _engine
from trnport.adapters.nki.simulator.operands import (
    affine,
    number,
    pick_engine,
    quiet,
    tile,
)
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.steps import (
    require_reach,
)
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["iota", "memset", "reciprocal", "tensor_copy"]

_UNKNOWN = _engine.unknown


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
    require_reach("tensor_copy", where, dst=dst, src=src)
    if where == "gpsimd" and (dst.lookup is not None or src.lookup is not None):
        tile("tensor_copy", "dst", dst)
        tile("tensor_copy", "src", src)
    values = read(src, "tensor_copy")
    if dst.dtype != src.dtype:
        values = values.astype(np.float32)
    write(dst, values, "tensor_copy")
    count("tensor_copy", where, src.free_size, one_input(where, dst, src))
    return NkiInstruction("tensor_copy")


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
    require_reach("memset", where, dst=dst)
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
