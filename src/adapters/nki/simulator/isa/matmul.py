# SPDX-License-Identifier: Apache-2.0
"""Tensor engine: `nc_matmul` and `nc_transpose`, with PSUM accumulation as the hardware does it."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import check, machine
from trnport.adapters.nki.simulator.access import read, read_f32, write
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.dtypes import Array, to_float32
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import engine as _engine
from trnport.adapters.nki.simulator.isa.enums import matmul_perf_mode as _perf
from trnport.adapters.nki.simulator.marks import last_writer, mark
from trnport.adapters.nki.simulator.memory import NOBODY, OTHER, PSUM, SBUF
from trnport.adapters.nki.simulator.operands import quiet
from trnport.adapters.nki.simulator.rules import Rule, add, violation
from trnport.adapters.nki.simulator.targets import PARTITIONS
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["nc_matmul", "nc_transpose"]

_PAGE = "nki.isa.nc_matmul: "
_FP8 = ("float8_e4m3", "float8_e5m2", "float8_e4m3fn")
_WIDE = ("float32", "tfloat32")
_SLOWEST_ISSUE = 64  # engine cycles of the shortest matmul
_FP32_PASSES = 4

add(
    Rule(
        "NKI-MATMUL-DTYPE",
        "fp32 only meets fp32; e4m3 and e4m3fn never meet.",
        f"{_PAGE}data types",
    ),
    Rule(
        "NKI-MATMUL-DST", "dst is float32; from NeuronCore-v4 also bfloat16.", f"{_PAGE}data types"
    ),
    Rule("NKI-MATMUL-SIZE", "K and M up to the tile, N up to the PSUM limit.", f"{_PAGE}tile size"),
    Rule(
        "NKI-MATMUL-STATIONARY",
        "stationary has one free dimension: with more, hardware results differ.",
        "trnport: known difference between public simulator and trn2",
        relaxed=True,
    ),
    Rule("NKI-MATMUL-BANK", "dst lies in one PSUM bank before NeuronCore-v4.", f"{_PAGE}tile size"),
    Rule(
        "NKI-MATMUL-TILING",
        "tile_position and tile_size come together; sizes 32, 64 or 128, starts multiples of them.",
        f"{_PAGE}tiling mode",
    ),
    Rule(
        "NKI-MATMUL-DOUBLE-ROW",
        "double_row takes fp8 of shapes [K, 2, M] and [K, 2, N], no column tiling, no transpose.",
        f"{_PAGE}performance mode",
    ),
    Rule(
        "NKI-MATMUL-ACCUMULATE",
        "A matmul accumulates only where a matmul wrote last.",
        f"{_PAGE}accumulation mode",
        relaxed=True,
    ),
    Rule(
        "NKI-MATMUL-TRANSPOSE",
        "Transpose mode keeps the dtype of its input.",
        f"{_PAGE}transpose mode",
    ),
    Rule(
        "NKI-TRANSPOSE-SIZE",
        "Tensor engine: up to 128 x 128, SBUF to PSUM. Vector engine: up to 32 x 32.",
        "nki.isa.nc_transpose: tile size",
    ),
)


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: Any = _perf.none,
    name: str | None = None,
) -> NkiInstruction:
    """Compute dst[M, N] = stationary[K, M].T @ moving[K, N] in float32.

    Args:
        dst: PSUM tile.
        stationary: SBUF tile.
        moving: SBUF tile.
        is_stationary_onezero: Hint for the compiler.
        is_moving_onezero: The same.
        is_transpose: Move values unchanged; dst has their dtype.
        accumulate: True adds, False overwrites, None overwrites the first time and adds later.
        tile_position: (row, column) of the systolic array.
        tile_size: (rows, columns) of the array's tile.
        perf_mode: `double_row` contracts over 2K.
        name: Unused here.
    """
    check.require_tile("nc_matmul", "dst", dst, PSUM)
    check.require_tile("nc_matmul", "stationary", stationary, SBUF)
    check.require_tile("nc_matmul", "moving", moving, SBUF)
    double = perf_mode is _perf.double_row
    if double:
        _check_double_row(stationary, moving, tile_size, is_transpose)
    _check_dtypes(dst, stationary, moving, is_transpose)
    k, m, n = _check_sizes(dst, stationary, moving, double)
    if tile_position or tile_size:
        _check_tiling(stationary, m, tuple(tile_position), tuple(tile_size))
    _check_bank(dst)
    product = _product(stationary, moving, k, m, n, is_transpose=is_transpose)
    _accumulate(dst, product.reshape(dst.shape), accumulate)
    _count(stationary, k, m, n)
    return NkiInstruction("nc_matmul")


@quiet
def _product(
    stationary: NkiTensor, moving: NkiTensor, k: int, m: int, n: int, *, is_transpose: bool
) -> Array:
    left = read_f32(stationary, "nc_matmul").reshape(-1, m) if k else None
    right = read_f32(moving, "nc_matmul").reshape(-1, n)
    assert left is not None
    if is_transpose:
        # Values must survive unchanged, NaN and infinity included, so nothing is multiplied.
        if left.shape == (k, k) and np.array_equal(left, np.eye(k, dtype=np.float32)):
            return right
        if right.shape == (k, k) and np.array_equal(right, np.eye(k, dtype=np.float32)):
            return left.T
    return left.T @ right


def _check_dtypes(
    dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, is_transpose: bool
) -> None:
    target = machine.current().target
    if stationary.dtype not in target.matmul_dtypes:
        check.require_dtype("nc_matmul", "stationary", stationary, target.matmul_dtypes)
    if moving.dtype not in target.matmul_dtypes:
        check.require_dtype("nc_matmul", "moving", moving, target.matmul_dtypes)
    pair = (stationary.dtype, moving.dtype)
    if pair[0] != pair[1] and (
        (pair[0] in _WIDE) != (pair[1] in _WIDE) or set(pair) == {"float8_e4m3", "float8_e4m3fn"}
    ):
        violation("NKI-MATMUL-DTYPE", "nc_matmul", "stationary, moving", pair, "a legal pair")
    if is_transpose:
        if dst.dtype not in pair:
            violation("NKI-MATMUL-TRANSPOSE", "nc_matmul", "dst", dst.dtype, f"one of {pair}")
    elif dst.dtype not in target.matmul_dst:
        violation("NKI-MATMUL-DST", "nc_matmul", "dst", dst.dtype, " or ".join(target.matmul_dst))


def _check_sizes(
    dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, double: bool
) -> tuple[int, int, int]:
    k, rows = stationary.shape[0], 2 if double else 1
    m, n = stationary.free_size // rows, moving.free_size // rows
    if moving.shape[0] != k:
        violation("NKI-SHAPE", "nc_matmul", "moving partitions", moving.shape[0], k)
    if dst.shape[0] != m or dst.free_size != n:
        violation("NKI-SHAPE", "nc_matmul", "dst", dst.shape, (m, n))
    if m > PARTITIONS:
        violation("NKI-MATMUL-SIZE", "nc_matmul", "stationary free size", m, PARTITIONS)
    limits = machine.current().target.matmul_moving_max
    most = limits.get(dst.dtype, limits["float32"])
    if n > most:
        violation("NKI-MATMUL-SIZE", "nc_matmul", "moving free size", n, most)
    if not double and len(stationary.shape) > 2 and sum(s != 1 for s in stationary.shape[1:]) > 1:
        violation("NKI-MATMUL-STATIONARY", "nc_matmul", "stationary", stationary.shape, "(K, M)")
    return k, m, n


def _check_bank(dst: NkiTensor) -> None:
    target = machine.current().target
    if target.generation >= 4:
        return
    size = dst.itemsize
    row = dst.storage.row_bytes
    first = (dst.storage.address or 0) + dst.offset * size % row
    reach = sum(
        stride * (count_ - 1) for stride, count_ in zip(dst.strides[1:], dst.shape[1:], strict=True)
    )
    last = first + reach * size + size - 1
    if first // target.psum_bank_bytes != last // target.psum_bank_bytes:
        violation(
            "NKI-MATMUL-BANK",
            "nc_matmul",
            "dst",
            f"bytes {first} to {last} of a partition",
            f"one bank of {target.psum_bank_bytes}",
        )


def _check_tiling(
    stationary: NkiTensor, m: int, position: tuple[int, ...], size: tuple[int, ...]
) -> None:
    if len(position) != 2 or len(size) != 2:
        violation(
            "NKI-MATMUL-TILING", "nc_matmul", "tile_position, tile_size", (position, size), "both"
        )
    smallest = 32 if machine.current().target.generation >= 3 else 64
    for start, extent, axis in zip(position, size, ("row", "column"), strict=True):
        if extent not in {32, 64, 128} or extent < smallest:
            violation("NKI-MATMUL-TILING", "nc_matmul", f"tile_size {axis}", extent, "32, 64, 128")
        if start % extent or not 0 <= start < PARTITIONS:
            violation(
                "NKI-MATMUL-TILING", "nc_matmul", f"tile_position {axis}", start, f"k * {extent}"
            )
    if stationary.shape[0] > size[0] or m > size[1]:
        violation("NKI-MATMUL-TILING", "nc_matmul", "stationary", stationary.shape, size)


def _check_double_row(
    stationary: NkiTensor, moving: NkiTensor, tile_size: tuple[int, ...], is_transpose: bool
) -> None:
    check.require_generation("nc_matmul", 3, "perf_mode double_row")
    rule = "NKI-MATMUL-DOUBLE-ROW"
    for name, t in (("stationary", stationary), ("moving", moving)):
        if t.dtype not in _FP8:
            violation(rule, "nc_matmul", name, t.dtype, ", ".join(_FP8))
        if t.ndim < 3 or t.shape[1] != 2:
            violation(rule, "nc_matmul", name, t.shape, "(K, 2, free)")
    if is_transpose or (tile_size and tile_size[1] != PARTITIONS):
        violation(rule, "nc_matmul", "mode", "transpose or column tiling", "double_row alone")


def _accumulate(dst: NkiTensor, product: Array, accumulate: bool | None) -> None:
    """Store a product, adding where PSUM already holds a matmul's sums."""
    if dst.lookup is not None or accumulate is False:
        if dst.lookup is not None:
            write(dst, product, "nc_matmul")
            return
        mark(dst, "nc_matmul", matmul=True)
        dst.array()[...] = product
        return
    who = last_writer(dst)
    present = {who} if isinstance(who, int) else set(np.unique(who).tolist())
    if OTHER in present and machine.current().target.generation < 4:
        _refuse(f"accumulate={accumulate}", "onto data of another instruction")
    if accumulate and NOBODY in present:
        _refuse("accumulate=True", "where no matmul has written")
    out = dst.array()
    if NOBODY not in present:
        product = to_float32(out) + product
    elif not isinstance(who, int):
        product = np.where(who != NOBODY, to_float32(out), np.float32(0.0)) + product
    mark(dst, "nc_matmul", matmul=True)
    out[...] = product


def _refuse(mode: str, where: str) -> None:
    violation("NKI-MATMUL-ACCUMULATE", "nc_matmul", mode, where, "accumulate=False first")


def _count(stationary: NkiTensor, k: int, m: int, n: int) -> None:
    passes = _FP32_PASSES if stationary.dtype == "float32" else 1
    cycles = max(n, _SLOWEST_ISSUE) * passes
    counters = machine.current().counters
    counters.add("nc_matmul", "tensor", n, cycles)
    counters.pe_cycles += cycles
    doubled = stationary.size // (k * m)
    counters.pe_macs += PARTITIONS * PARTITIONS * n * doubled
    counters.pe_useful_macs += k * m * n * doubled


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: Any = _engine.unknown, name: str | None = None
) -> NkiInstruction:
    """Write data[P, F...] as dst[F, P], bit by bit.

    Args:
        dst: Tile of the same dtype.
        data: Tile; its free dimensions count as one.
        engine: Tensor or vector; by default what the memories allow.
        name: Unused here.
    """
    check.require_parameter(
        "nc_transpose", "engine", engine, (_engine.unknown, _engine.tensor, _engine.vector)
    )
    rows, columns = data.shape[0], data.free_size
    if engine is _engine.unknown:
        to_psum = data.buffer is SBUF and dst.buffer is PSUM
        engine = _engine.tensor if to_psum else _engine.vector
    if engine is _engine.tensor:
        check.require_tile("nc_transpose", "data", data, SBUF)
        check.require_tile("nc_transpose", "dst", dst, PSUM)
        most = PARTITIONS
    else:
        check.require_tile("nc_transpose", "data", data, SBUF, PSUM)
        check.require_tile("nc_transpose", "dst", dst, SBUF, PSUM)
        most = 32
    if rows > most or columns > most:
        violation(
            "NKI-TRANSPOSE-SIZE",
            "nc_transpose",
            f"data on the {engine.name} engine",
            (rows, columns),
            f"{most} x {most}",
        )
    if dst.shape[0] != columns or dst.free_size != rows:
        violation("NKI-SHAPE", "nc_transpose", "dst", dst.shape, (columns, rows))
    check.require_same_dtype("nc_transpose", dst, data)
    write(dst, read(data, "nc_transpose").reshape(rows, columns).T, "nc_transpose")
    if engine is _engine.tensor:
        counters = machine.current().counters
        cycles = max(rows, _SLOWEST_ISSUE) * (_FP32_PASSES if data.dtype == "float32" else 1)
        counters.add("nc_transpose", "tensor", rows, cycles)
        counters.pe_cycles += cycles
    else:
        count("nc_transpose", "vector", columns)
    return NkiInstruction("nc_transpose")
