# SPDX-License-Identifier: Apache-2.0
"""Microscaling (MX) formats of NeuronCore-v4: quantization and matmul.

A group of 8 partitions x 4 elements shares one scale, a power of two stored as its exponent plus
127. Group g of a tile keeps its scale on partition g // 4 * 32 + g % 4 of the scale tile, which may
start 0, 4, 8 or 12 partitions into the quadrant of the data.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from trnport.adapters.nki.simulator import check, machine
from trnport.adapters.nki.simulator.access import read, read_f32, write
from trnport.adapters.nki.simulator.alu import Array
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.dtypes import stored_dtype
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.matmul import _accumulate as accumulate_psum
from trnport.adapters.nki.simulator.memory import PSUM, SBUF
from trnport.adapters.nki.simulator.operands import quiet, tile
from trnport.adapters.nki.simulator.rules import Rule, add
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.targets import PARTITIONS
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["nc_matmul_mx", "quantize_mx"]

add(
    Rule(
        "NKI-MX-SIZE",
        "Partitions are a multiple of 32, packed elements come in fours, stationary columns are "
        "even and at most 128.",
        "nki.isa.quantize_mx, nc_matmul_mx: tile size",
    ),
    Rule(
        "NKI-MX-SCALE",
        "Scales lie in the quadrant of their group, from partition 0, 4, 8 or 12 of it.",
        "MXFP matmul: scale tensor, packing scale values",
    ),
    Rule(
        "NKI-MX-TILE",
        "Row tiles of 32, 64 or 128 rows and 128 columns, at a multiple of their rows.",
        "nki.isa.nc_matmul_mx: tiling mode",
    ),
)

_GROUP = 8  # partitions of a scaling group
_PACK = 4
_QUADRANT = 32
_OFFSETS = (0, 4, 8, 12)
_BIAS = 127
_NAN_SCALE = 255
_SCALES = ("float8_e8m0fnu", "uint8")
_ELEMENTS: dict[str, Any] = {
    "float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn,
    "float8_e5m2_x4": ml_dtypes.float8_e5m2,
    "float4_e2m1fn_x4": ml_dtypes.float4_e2m1fn,
}
_EXPONENT_MAX = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15}
_LARGEST_N = {"float32": 4096, "bfloat16": 8192}
_ISSUE = 64  # engine cycles of the shortest matmul


@quiet
def quantize_mx(
    dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Quantize to MXFP8 with one scale per 8 partitions x 4 elements.

    The scale is twice that of the OCP sample algorithm. A group with NaN or infinity gets the NaN
    scale, which the documentation leaves open.

    Args:
        dst: float8_e4m3fn_x4 or float8_e5m2_x4 tile (P, F / 4) in SBUF.
        src: float16 or bfloat16 tile (P, F) in SBUF, P a multiple of 32, F of 4.
        dst_scale: float8_e8m0fnu or uint8 tile in SBUF with F / 4 elements per partition; only
            the partitions of the groups are written.
        name: Ignored.
    """
    me = "quantize_mx"
    check.require_generation(me, 4)
    for label, t in (("dst", dst), ("src", src)):
        check.require_tile(me, label, t, SBUF)
    check.require_dtype(me, "src", src, ("float16", "bfloat16"))
    check.require_dtype(me, "dst", dst, tuple(_EXPONENT_MAX))
    partitions, free = src.shape[0], src.free_size
    _require_rows(me, "src", partitions)
    if free % _PACK:
        violation("NKI-MX-SIZE", me, "src", f"{free} elements per partition", "a multiple of 4")
    if dst.shape[0] != partitions or dst.free_size * _PACK != free:
        violation("NKI-SHAPE", me, "dst", dst.shape, f"({partitions}, {free // _PACK})")
    _require_scales(me, "dst_scale", dst_scale, src, free // _PACK)
    groups = read_f32(src, me).reshape(partitions // _GROUP, _GROUP, -1, _PACK)
    exponents = _scale_exponents(groups, _EXPONENT_MAX[dst.dtype])
    factors = np.ldexp(np.float32(1), -exponents)[:, None, :, None]
    elements = (groups * factors).astype(_ELEMENTS[dst.dtype])
    write(dst, elements.reshape(partitions, -1).view(np.uint32), me)
    stored = np.where(np.isfinite(groups).all((1, 3)), exponents + _BIAS, _NAN_SCALE)
    _write_scales(me, dst_scale, stored.astype(np.uint8))
    count(me, "vector", free, free / _PACK)
    return NkiInstruction(me)


def _scale_exponents(groups: Array, largest: int) -> Array:
    """Exponents of the scales, int32 [groups, F / 4]."""
    top = np.abs(groups).max((1, 3))
    exponents = np.frexp(top)[1] - 1 - (largest - 1)  # frexp's mantissa starts at a half
    return np.where(top > 0, np.maximum(exponents, -_BIAS), -_BIAS).astype(np.int32)


def _require_rows(instruction: str, name: str, partitions: int) -> None:
    if partitions % _QUADRANT:
        violation("NKI-MX-SIZE", instruction, name, f"{partitions} partitions", "32, 64, 96, 128")


def _scale_rows(partitions: int) -> Array:
    groups = np.arange(partitions // _GROUP)
    return groups // 4 * _QUADRANT + groups % 4


def _require_scales(
    instruction: str, name: str, scales: NkiTensor, data: NkiTensor, free: int
) -> None:
    check.require_buffer(instruction, name, scales, SBUF)
    check.require_dtype(instruction, name, scales, _SCALES)
    needed = int(_scale_rows(data.shape[0])[-1]) + 1
    start = scales.start_partition
    if scales.free_size != free or scales.shape[0] < needed:
        limit = f"({needed} or more, {free})"
        violation("NKI-MX-SCALE", instruction, name, scales.shape, limit)
    offset = start - data.start_partition // _QUADRANT * _QUADRANT
    if offset not in _OFFSETS:
        value = f"from partition {start}, data from {data.start_partition}"
        violation("NKI-MX-SCALE", instruction, name, value, f"offsets {_OFFSETS}")


def _write_scales(instruction: str, scales: NkiTensor, stored: Array) -> None:
    kind = stored_dtype(scales.dtype)
    for first in range(0, len(stored), 4):
        row = first // 4 * _QUADRANT
        write(scales[row : row + 4], stored[first : first + 4].view(kind), instruction)


@quiet
def nc_matmul_mx(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: tuple[int, int] | None = None,
    tile_size: tuple[int, int] | None = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Multiply MX matrices: the contraction runs over partitions and the 4 packed elements.

    Args:
        dst: float32 or bfloat16 tile (M, N) in PSUM.
        stationary: Packed tile (K, M) in SBUF, K a multiple of 32, M even and at most 128.
        moving: Packed tile (K, N) in SBUF; the dtypes may differ.
        stationary_scale: Scales of `stationary`, laid out as `quantize_mx` writes them.
        moving_scale: Scales of `moving`.
        tile_position: (row, 0) in the array, with `tile_size`.
        tile_size: (32, 64 or 128, 128).
        accumulate: As in `nc_matmul`.
        name: Ignored.
    """
    me = "nc_matmul_mx"
    check.require_generation(me, 4)
    check.require_tile(me, "dst", dst, PSUM)
    check.require_dtype(me, "dst", dst, tuple(_LARGEST_N))
    k, m, n = stationary.shape[0], stationary.free_size, moving.free_size
    for label, t in (("stationary", stationary), ("moving", moving)):
        tile(me, label, t)
        check.require_tile(me, label, t, SBUF)
        check.require_dtype(me, label, t, tuple(_ELEMENTS))
        _require_rows(me, label, t.shape[0])
    if moving.shape[0] != k:
        violation("NKI-SHAPE", me, "moving partitions", moving.shape[0], k)
    if m % 2 or m > PARTITIONS:
        violation("NKI-MX-SIZE", me, "stationary columns", m, f"even, at most {PARTITIONS}")
    if n > _LARGEST_N[dst.dtype]:
        violation("NKI-MX-SIZE", me, "moving columns", n, f"at most {_LARGEST_N[dst.dtype]}")
    if dst.shape[0] != m or dst.free_size != n:
        violation("NKI-SHAPE", me, "dst", dst.shape, f"({m}, {n})")
    _require_scales(me, "stationary_scale", stationary_scale, stationary, m)
    _require_scales(me, "moving_scale", moving_scale, moving, n)
    _require_row_tile(me, k, tile_position, tile_size)
    left = _dequantized(me, stationary, stationary_scale)
    right = _dequantized(me, moving, moving_scale)
    accumulate_psum(dst, (left.T @ right).reshape(dst.shape), accumulate)
    counters = machine.current().counters
    cycles = max(n, _ISSUE)
    counters.add(me, "tensor", n, cycles)
    counters.pe_cycles += cycles
    counters.pe_macs += PARTITIONS * PARTITIONS * n * _PACK
    counters.pe_useful_macs += k * m * n * _PACK
    return NkiInstruction(me)


def _require_row_tile(instruction: str, rows: int, position: Any, size: Any) -> None:
    if not position and not size:
        return
    paired = bool(position) and bool(size) and len(position) == len(size) == 2
    legal = (
        paired
        and size[0] in {32, 64, 128}
        and size[1] == PARTITIONS
        and rows <= size[0]
        and position[1] == 0
        and position[0] % size[0] == 0
        and 0 <= position[0] < PARTITIONS
    )
    if not legal:
        limit = f"rows of 32, 64 or 128 that hold {rows}, 128 columns, at a multiple of the rows"
        value = f"{position}, {size}"
        violation("NKI-MX-TILE", instruction, "tile_position, tile_size", value, limit)


def _dequantized(instruction: str, data: NkiTensor, scales: NkiTensor) -> Array:
    """fp32 [4 K, columns], the packed element slowest."""
    kind = _ELEMENTS[data.dtype]
    rows = data.shape[0]
    words = np.ascontiguousarray(read(data, instruction).reshape(rows, -1))
    if data.dtype == "float4_e2m1fn_x4":
        shifts = np.arange(0, 16, 4, dtype=np.uint16)
        patterns = (words[:, :, None] >> shifts & np.uint16(15)).astype(np.uint8)
    else:
        patterns = words.view(np.uint8).reshape(rows, -1, _PACK)
    values = patterns.view(kind).astype(np.float32)
    factors = np.repeat(_read_scales(instruction, scales, rows), _GROUP, axis=0)
    return (values * factors[:, :, None]).transpose(2, 0, 1).reshape(_PACK * rows, -1)


def _read_scales(instruction: str, scales: NkiTensor, partitions: int) -> Array:
    """fp32 scales of the groups, [K / 8, columns]."""
    parts = []
    for row in range(0, partitions, _QUADRANT):
        four = np.ascontiguousarray(read(scales[row : row + 4], instruction)).view(np.uint8)
        parts.append(four.reshape(4, -1))
    exponents = np.concatenate(parts).astype(np.int32) - _BIAS
    factors = np.ldexp(np.float32(1), exponents)
    return np.where(exponents == _NAN_SCALE - _BIAS, np.float32(np.nan), factors)
