# SPDX-License-Identifier: Apache-2.0
"""Moves across partitions inside SBUF and PSUM, and gathers."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import check
from trnport.adapters.nki.simulator.access import read, read_int, write
from trnport.adapters.nki.simulator.alu import Array
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.memory import PSUM, SBUF
from trnport.adapters.nki.simulator.operands import quiet, tile, whole_number
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["local_gather", "nc_n_gather", "nc_stream_shuffle"]

_QUADRANT = 32
_KEEP = 255
_CORE = 16  # partitions per GpSimd core
_RUNS = (1, 2, 4, 8, 16, 32)
_INDICES_MAX = 4096
_STARTS = {32: (0, 32, 64, 96), 64: (0, 64), 96: (0,), 128: (0,)}


@quiet
def nc_stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None
) -> NkiInstruction:
    """Let partition i of each quadrant of dst take partition mask[i] of the quadrant of src.

    Args:
        dst: Tile in SBUF or PSUM.
        src: Tile of the same dtype and elements per partition; may be `dst`.
        shuffle_mask: 32 integers; 255 leaves the partition of dst as it is.
        name: Ignored.
    """
    me = "nc_stream_shuffle"
    for label, t in (("dst", dst), ("src", src)):
        check.require_buffer(me, label, t, SBUF, PSUM)
    _require_starts(me, dst, src)
    check.require_same_dtype(me, dst, src)
    if dst.free_size != src.free_size:
        violation("NKI-SHAPE", me, "dst elements per partition", dst.free_size, src.free_size)
    wanted = _sources(me, dst.shape[0], src.shape[0], shuffle_mask)
    values = _rows(me, src, wanted)[np.maximum(wanted, 0)]
    for start, stop in _runs(wanted >= 0):
        write(dst[start:stop], values[start:stop], me)
    count(me, "vector", src.free_size)
    return NkiInstruction(me)


def _require_starts(me: str, dst: NkiTensor, src: NkiTensor) -> None:
    active = -(-max(dst.shape[0], src.shape[0]) // _QUADRANT) * _QUADRANT
    if active not in _STARTS:
        violation("NKI-PARTITIONS", me, "partitions", active, "at most 128")
    for label, t in (("dst", dst), ("src", src)):
        if t.start_partition not in _STARTS[active]:
            value = f"{t.start_partition} with {active} active partitions"
            violation(
                "NKI-SHUFFLE-START", me, f"start partition of {label}", value, _STARTS[active]
            )


def _sources(me: str, partitions: int, available: int, mask: Any) -> Array:
    """The source partition of each partition of dst; -1 to keep it."""
    if not isinstance(mask, list | tuple) or len(mask) != _QUADRANT:
        violation("NKI-SHUFFLE-MASK", me, "shuffle_mask", mask, "a list of 32 integers")
    wanted = np.full(partitions, -1, np.int64)
    for p in range(partitions):
        entry = mask[p % _QUADRANT]
        if entry == _KEEP:
            continue
        limits = (0, min(_QUADRANT, available - p // _QUADRANT * _QUADRANT) - 1)
        label = f"shuffle_mask[{p % _QUADRANT}]"
        whole_number(me, label, entry, limits, "NKI-SHUFFLE-MASK")
        wanted[p] = p // _QUADRANT * _QUADRANT + int(entry)
    return wanted


def _rows(me: str, src: NkiTensor, wanted: Array) -> Array:
    """The elements of src, [P, F]; only partitions that are used have to be written."""
    if src.storage.mask is None or src.lookup is not None:
        values = read(src, me)
    else:
        for row in np.unique(wanted[wanted >= 0]):
            read(src[int(row) : int(row) + 1], me)
        values = src.array()
    return values.reshape(src.shape[0], -1)


def _runs(flags: Array) -> list[tuple[int, int]]:
    """Start and end of each run of true flags."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


@quiet
def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Gather along the free dimension, with indices shared by 16 partitions of a GpSimd core.

    Args:
        dst: Tile in SBUF of num_valid_indices * num_elem_per_idx elements per partition.
        src_buffer: Tile in SBUF of the same dtype, with a multiple of 16 partitions.
        index: uint16 tile in SBUF; per core its elements in partition-first order are element
            offsets into the partitions.
        num_elem_per_idx: Consecutive elements per index: 1, 2, 4, 8, 16 or 32.
        num_valid_indices: Indices used per core; all by default.
        name: Ignored.
    """
    me = "local_gather"
    for label, t in (("dst", dst), ("src_buffer", src_buffer), ("index", index)):
        tile(me, label, t, psum=False)
        if t.shape[0] != src_buffer.shape[0] or t.shape[0] % _CORE:
            limit = "equal partitions, a multiple of 16"
            violation("NKI-SHAPE", me, label, t.shape, limit)
    check.require_same_dtype(me, dst, src_buffer)
    check.require_dtype(me, "index", index, ("uint16",))
    if num_elem_per_idx not in _RUNS:
        violation("NKI-GATHER-SIZE", me, "num_elem_per_idx", num_elem_per_idx, _RUNS)
    available = _CORE * index.free_size
    most = (1, min(available, _INDICES_MAX))
    given = available if num_valid_indices is None else num_valid_indices
    valid = whole_number(me, "num_valid_indices", given, most, "NKI-GATHER-SIZE")
    if dst.free_size != valid * num_elem_per_idx:
        limit = f"{valid} indices x {num_elem_per_idx} elements"
        violation("NKI-GATHER-SIZE", me, "dst elements per partition", dst.free_size, limit)
    indices = read_int(index, me).reshape(-1, _CORE, index.free_size)
    flat = indices.transpose(0, 2, 1).reshape(len(indices), -1)[:, :valid]
    width = src_buffer.free_size
    _require_inside(me, "index", flat, width - num_elem_per_idx)
    places = (flat[:, :, None] + np.arange(num_elem_per_idx)).reshape(len(flat), -1)
    rows = read(src_buffer, me).reshape(src_buffer.shape[0], width)
    write(dst, np.take_along_axis(rows, np.repeat(places, _CORE, axis=0), 1), me)
    count(me, "gpsimd", dst.free_size)
    return NkiInstruction(me)


def _require_inside(instruction: str, name: str, values: Array, last: int) -> None:
    if values.max() > last or values.min() < 0:
        violation("NKI-GATHER-INDEX", instruction, name, int(values.max()), f"0 to {last}")


@quiet
def nc_n_gather(
    dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Gather elements of each partition by flat indices of the same partition.

    Args:
        dst: Tile in SBUF of the dtype of `data` with the elements of `indices`.
        data: Tile in SBUF.
        indices: uint32 tile in SBUF.
        name: Ignored.
    """
    me = "nc_n_gather"
    for label, t in (("dst", dst), ("data", data), ("indices", indices)):
        tile(me, label, t, psum=False)
    check.require_same_dtype(me, dst, data)
    check.require_dtype(me, "indices", indices, ("uint32",))
    check.require_same_free(me, dst, indices)
    if data.shape[0] != dst.shape[0]:
        violation("NKI-SHAPE", me, "data", data.shape, f"{dst.shape[0]} partitions")
    partitions = data.shape[0]
    places = read_int(indices, me).reshape(partitions, -1)
    _require_inside(me, "indices", places, data.free_size - 1)
    rows = read(data, me).reshape(partitions, -1)
    write(dst, np.take_along_axis(rows, places, 1), me)
    count(me, "gpsimd", dst.free_size)
    return NkiInstruction(me)
