# SPDX-License-Identifier: Apache-2.0
"""Searches: the largest values and where values are."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import check
from trnport.adapters.nki.simulator.access import read_f32, read_int, write
from trnport.adapters.nki.simulator.alu import Array
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.operands import number, quiet, tile, whole_number
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = [
    "max8",
    "nc_find_index8",
    "nc_match_replace8",
    "nonzero_with_count",
    "sequence_bounds",
    "topk",
]

_EIGHT = 8
_SEARCH_MAX = 16_384
_CORE = 16  # partitions per GpSimd core
_INDICES = ("uint16", "uint32")


def _require_searchable(instruction: str, name: str, t: NkiTensor, rank: int = 3) -> None:
    tile(instruction, name, t)
    if t.ndim > rank:
        violation("NKI-RANK-LIMIT", instruction, name, f"{t.ndim} dimensions", f"at most {rank}")
    if not _EIGHT <= t.free_size <= _SEARCH_MAX:
        value = f"{t.free_size} elements per partition"
        violation("NKI-FREE-SIZE", instruction, name, value, f"{_EIGHT} to {_SEARCH_MAX}")


def _require_eight(instruction: str, name: str, t: NkiTensor, data: NkiTensor) -> None:
    tile(instruction, name, t)
    if t.shape[0] != data.shape[0] or t.free_size != _EIGHT:
        violation("NKI-SHAPE", instruction, name, t.shape, f"({data.shape[0]}, {_EIGHT})")


def _rows(t: NkiTensor, instruction: str) -> Array:
    return read_f32(t, instruction).reshape(t.shape[0], -1)


@quiet
def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Write the 8 largest values of each partition, in descending order.

    Args:
        dst: Tile (P, 8).
        src: Tile of at most 3 dimensions with 8 to 16,384 elements per partition.
        name: Ignored.
    """
    me = "max8"
    _require_searchable(me, "src", src)
    _require_eight(me, "dst", dst, src)
    if dst.ndim != 2:
        violation("NKI-SHAPE", me, "dst", dst.shape, f"({src.shape[0]}, {_EIGHT})")
    values = _rows(src, me)
    if values.shape[1] > 2 * _EIGHT:
        values = np.partition(values, values.shape[1] - _EIGHT, axis=1)[:, -_EIGHT:]
    write(dst, np.sort(values, axis=1)[:, : -_EIGHT - 1 : -1], me)
    count(me, "vector", src.free_size)
    return NkiInstruction(me)


@quiet
def nc_find_index8(
    dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Write where each of 8 values is first found; equal values take successive places.

    Args:
        dst: uint16 or uint32 tile (P, 8); all ones for a value that is not there.
        data: Tile of at most 3 dimensions with 8 to 16,384 elements per partition.
        vals: Tile with 8 elements per partition.
        name: Ignored.
    """
    me = "nc_find_index8"
    _require_searchable(me, "data", data)
    _require_eight(me, "vals", vals, data)
    _require_eight(me, "dst", dst, data)
    check.require_dtype(me, "dst", dst, _INDICES)
    order = range(_EIGHT)
    write(dst, _matches(_rows(data, me), _rows(vals, me), order, dst.dtype), me)
    count(me, "vector", data.free_size)
    return NkiInstruction(me)


def _matches(data: Array, vals: Array, order: Any, dtype: str) -> Array:
    """Positions of the values, taken in `order`; each position is used once.

    Returns:
        int64 [P, 8]; the largest value of `dtype` where nothing is left to match.
    """
    rows = np.arange(len(data))
    found = np.empty((len(data), _EIGHT), np.int64)
    free = np.ones(data.shape, np.bool_)
    for slot in order:
        hits = (data == vals[:, slot : slot + 1]) & free
        place = hits.argmax(1)
        hit = hits[rows, place]
        free[rows[hit], place[hit]] = False
        found[:, slot] = np.where(hit, place, np.iinfo(dtype).max)
    return found


@quiet
def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: float,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Copy `data` with the first match of each of 8 values replaced, the last value first.

    Args:
        dst: Tile with the elements of `data`; may be `data`.
        data: Tile with 8 to 16,384 elements per partition.
        vals: Tile with 8 elements per partition.
        imm: What replaces a match.
        dst_idx: uint16 or uint32 tile (P, 8) for the positions; all ones where nothing matched.
        name: Ignored.
    """
    me = "nc_match_replace8"
    _require_searchable(me, "data", data, rank=5)
    _require_eight(me, "vals", vals, data)
    tile(me, "dst", dst)
    check.require_same_free(me, dst, data)
    if not number(imm):
        violation("NKI-OPERAND", me, "imm", repr(imm), "a number")
    if dst_idx is not None:
        _require_eight(me, "dst_idx", dst_idx, data)
        check.require_dtype(me, "dst_idx", dst_idx, _INDICES)
    values = _rows(data, me).copy()
    index_dtype = "uint32" if dst_idx is None else dst_idx.dtype
    found = _matches(values, _rows(vals, me), range(_EIGHT - 1, -1, -1), index_dtype)
    row, slot = np.nonzero(found != np.iinfo(index_dtype).max)
    values[row, found[row, slot]] = np.float32(imm)
    write(dst, values, me)
    if dst_idx is not None:
        write(dst_idx, found, me)
    count(me, "vector", data.free_size)
    return NkiInstruction(me)


@quiet
def topk(
    val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None
) -> NkiInstruction:
    """Write the K largest values of each group of 16 partitions, in ascending order.

    Element e of a group lies on partition e % 16, column e // 16. Every partition of the group
    takes the same result.

    Args:
        val_dst: bfloat16 tile (P, K) in SBUF.
        idx_dst: uint32 tile (P, K) in SBUF, for the values' element numbers.
        src: bfloat16 tile (P, W) in SBUF, P a multiple of 16, W >= n / 16.
        n: Elements of a group, 8 to 65,535.
        name: Ignored.
    """
    me = "topk"
    for label, t, dtype in (
        ("val_dst", val_dst, "bfloat16"),
        ("idx_dst", idx_dst, "uint32"),
        ("src", src, "bfloat16"),
    ):
        tile(me, label, t, psum=False)
        check.require_dtype(me, label, t, (dtype,))
    size = whole_number(me, "n", n, (8, 65_535), "NKI-TOPK-SIZE")
    partitions, k = src.shape[0], val_dst.free_size
    if not 1 <= k <= min(size, 32_767):
        violation("NKI-TOPK-SIZE", me, "K", k, f"1 to {min(size, 32_767)}")
    if partitions % _CORE:
        violation("NKI-SHAPE", me, "src", src.shape, "a multiple of 16 partitions")
    check.require_same_free(me, idx_dst, val_dst, "idx_dst")
    if val_dst.shape[0] != partitions:
        violation("NKI-SHAPE", me, "val_dst", val_dst.shape, f"({partitions}, {k})")
    if src.free_size * _CORE < size:
        violation("NKI-FREE-SIZE", me, "src", src.free_size, f">= {-(-size // _CORE)}")
    snakes = _rows(src, me).reshape(-1, _CORE, src.free_size).transpose(0, 2, 1)
    active = snakes.reshape(len(snakes), -1)[:, :size]
    order = np.argsort(active, axis=1, kind="stable")[:, -k:]
    values = np.take_along_axis(active, order, 1)
    write(val_dst, np.repeat(values, _CORE, axis=0), me)
    write(idx_dst, np.repeat(order, _CORE, axis=0), me)
    count(me, "gpsimd", src.free_size, 4 * size + k)
    return NkiInstruction(me)


@quiet
def nonzero_with_count(
    dst: NkiTensor,
    src: NkiTensor,
    index_offset: int = 0,
    padding_val: int = -1,
    name: str | None = None,
) -> NkiInstruction:
    """Write the positions of nonzero elements, padding, and their count, per GpSimd core.

    Only partitions 0, 16, ..., 112 are read and written.

    Args:
        dst: int32 tile in SBUF with one more element per partition than `src`.
        src: float32 or int32 tile in SBUF.
        index_offset: Added to the positions.
        padding_val: Fills unused slots.
        name: Ignored.
    """
    me = "nonzero_with_count"
    check.require_generation(me, 3)
    tile(me, "dst", dst, psum=False)
    tile(me, "src", src, psum=False)
    check.require_dtype(me, "dst", dst, ("int32",))
    check.require_dtype(me, "src", src, ("float32", "int32"))
    free = src.free_size
    if dst.shape[0] != src.shape[0] or dst.free_size != free + 1:
        violation("NKI-SHAPE", me, "dst", dst.shape, f"{free + 1} elements on {src.shape[0]}")
    offset = whole_number(me, "index_offset", index_offset)
    padding = whole_number(me, "padding_val", padding_val)
    for first in range(0, src.shape[0], _CORE):
        row = src[first : first + 1]
        found = np.flatnonzero(read_f32(row, me).reshape(-1))
        values = np.full(free + 1, padding, np.int64)
        values[: len(found)] = found + offset
        values[free] = len(found)
        write(dst[first : first + 1], values, me)
    count(me, "gpsimd", free)
    return NkiInstruction(me)


@quiet
def sequence_bounds(
    dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Write where each element's segment starts and ends; n and -1 for padding (id 0).

    Args:
        dst: float32 or int32 tile (1, 2, n) in SBUF.
        segment_ids: float32 or int32 tile (1, n) in SBUF, non-negative integers.
        name: Ignored.
    """
    me = "sequence_bounds"
    for label, t in (("dst", dst), ("segment_ids", segment_ids)):
        tile(me, label, t, psum=False)
        check.require_dtype(me, label, t, ("float32", "int32"))
    size = segment_ids.free_size
    if segment_ids.shape[0] != 1 or dst.shape != (1, 2, size):
        value = f"{dst.shape} for {segment_ids.shape}"
        violation("NKI-SHAPE", me, "dst", value, f"(1, 2, {size}) for (1, {size})")
    ids = read_int(segment_ids, me).reshape(-1)
    if ids.min() < 0:
        violation("NKI-PARAMETER", me, "segment_ids", int(ids.min()), ">= 0")
    breaks = np.flatnonzero(np.diff(ids)) + 1
    starts = np.concatenate([[0], breaks])
    ends = np.concatenate([breaks, [size]])
    segment = np.searchsorted(breaks, np.arange(size), side="right")
    low = np.where(ids == 0, size, starts[segment])
    high = np.where(ids == 0, -1, ends[segment])
    write(dst, np.stack([low, high]), me)
    count(me, "gpsimd", size)
    return NkiInstruction(me)
