# SPDX-License-Identifier: Apache-2.0
"""DMA instructions: copy, transpose and add between HBM and SBUF, also at addresses from data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import check, machine
from trnport.adapters.nki.simulator.access import (
    gather,
    read,
    read_f32,
    scatter,
    write,
    write_where,
)
from trnport.adapters.nki.simulator.dtypes import Array, to_float32
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import dge_mode as _dge
from trnport.adapters.nki.simulator.isa.enums import engine as _engine
from trnport.adapters.nki.simulator.isa.enums import oob_mode as _oob
from trnport.adapters.nki.simulator.memory import HBM, SBUF, SHARED_HBM
from trnport.adapters.nki.simulator.ops import op_name
from trnport.adapters.nki.simulator.pattern import ColumnLookup, VectorLookup
from trnport.adapters.nki.simulator.rules import Rule, add, violation
from trnport.adapters.nki.simulator.targets import DMA_SOURCES_MAX, PARTITIONS
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["dma_compute", "dma_copy", "dma_transpose"]

_REACHED = (SBUF, HBM, SHARED_HBM)
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_COPY, _TRANSPOSE, _COMPUTE = "nki.isa.dma_copy", "nki.isa.dma_transpose", "nki.isa.dma_compute"

add(
    Rule(
        "NKI-DMA-DGE", "The descriptor mode must suit addresses and dtypes.", f"{_COPY}: DGE modes"
    ),
    Rule("NKI-DMA-INDEX", "A gather or scatter takes one index per row, shape (P, 1).", _COPY),
    Rule(
        "NKI-DMA-OOB-MODE",
        "oob_mode.skip needs an address that depends on data.",
        f"{_COPY}: oob_mode",
    ),
    Rule(
        "NKI-DMA-TRANSPOSE",
        "A direct transpose by hardware descriptors: 2-byte dtype, last dimension up to 128, "
        "rows in groups of 16.",
        f"{_TRANSPOSE}: direct transpose",
    ),
    Rule(
        "NKI-DMA-TRANSPOSE-MODE",
        "A direct transpose leaves dge_mode unknown or takes hwdge.",
        f"{_TRANSPOSE}: direct transpose",
        relaxed=True,
    ),
    Rule(
        "NKI-DMA-GATHER-TRANSPOSE",
        "A transpose of gathered rows: 2-byte dtype in HBM, last dimension up to 128, rows and "
        "indices in multiples of 16.",
        f"{_TRANSPOSE}: indirect transpose",
    ),
    Rule("NKI-DMA-COMPUTE", "Up to 16 sources, added, unscaled.", _COMPUTE),
    Rule(
        "NKI-DMA-RMW",
        "Read-modify-write takes two sources and unique indices, one side of it equal to dst.",
        f"{_COMPUTE}: read-modify-write",
    ),
)


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: Any = _oob.error,
    dge_mode: Any = _dge.unknown,
    engine: Any = _engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """Copy between HBM and SBUF, with a cast by way of float32 if the dtypes differ.

    Args:
        dst: Destination, any view with as many elements as `src`.
        src: Source.
        priority: 0 to 3, NeuronCore-v4.
        oob_mode: What an out-of-bounds dynamic index does.
        dge_mode: Who generates descriptors.
        engine: Sync or scalar, for hardware descriptors.
        name: Unused here.
    """
    check.require_buffer("dma_copy", "dst", dst, *_REACHED)
    check.require_buffer("dma_copy", "src", src, *_REACHED)
    if dst.size != src.size:
        violation("NKI-SHAPE", "dma_copy", "dst elements", dst.size, f"{src.size} as in src")
    if type(dge_mode) is not _dge:
        dge_mode = check.require_enum("dma_copy", "dge_mode", dge_mode, _dge)
    if type(oob_mode) is not _oob:
        oob_mode = check.require_enum("dma_copy", "oob_mode", oob_mode, _oob)
    if dst.lookup is None and src.lookup is None:
        if dge_mode is not _dge.unknown or oob_mode is not _oob.error or priority is not None:
            _check_static("dma_copy", dst, src, priority, oob_mode, dge_mode, engine)
        values = read(src, "dma_copy")
        if dst.dtype != src.dtype:
            values = to_float32(values)
        write(dst, values, "dma_copy")
    else:
        _check_dynamic(dst, src, priority, dge_mode)
        _copy_dynamic(dst, src, skip=oob_mode is _oob.skip)
    _count("dma_copy", dst, src)
    return NkiInstruction("dma_copy")


def _copy_dynamic(dst: NkiTensor, src: NkiTensor, *, skip: bool) -> None:
    valid = None
    if src.lookup is None:
        values = read(src, "dma_copy")
    else:
        values, valid = gather(src, "dma_copy", skip=skip)
    if dst.dtype != src.dtype:
        values = to_float32(values)
    if dst.lookup is not None:
        if valid is not None and not valid.all():
            violation("NKI-DMA-INDEX", "dma_copy", "dst and src", "both skip rows", "one of them")
        scatter(dst, values.reshape(dst.shape), "dma_copy", skip=skip)
    elif valid is None:
        write(dst, values, "dma_copy")
    else:
        _write_rows(dst, values, valid, "dma_copy")


def _write_rows(dst: NkiTensor, values: Array, valid: Array, instruction: str) -> None:
    """Write the rows that were in bounds and leave the others alone."""
    each = values.size // len(valid)
    where = np.repeat(valid, each).reshape(dst.shape)
    write_where(dst, values.reshape(dst.shape), where, instruction)


def _check_static(
    instruction: str,
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None,
    oob_mode: Any,
    dge_mode: Any,
    engine: Any,
) -> None:
    _check_priority(instruction, priority)
    if oob_mode is _oob.skip:
        violation("NKI-DMA-OOB-MODE", instruction, "oob_mode", "skip on static views", "error")
    if dge_mode is _dge.hwdge:
        check.require_generation(instruction, 3, "dge_mode hwdge")
        if dst.dtype != src.dtype:
            violation(
                "NKI-DMA-DGE", instruction, "dtypes with hwdge", (dst.dtype, src.dtype), "equal"
            )
    elif engine is not _engine.unknown:
        violation("NKI-DMA-DGE", instruction, "engine", engine.name, "only with hwdge")


def _check_priority(instruction: str, priority: int | None) -> None:
    if priority is not None:
        check.require_generation(instruction, 4, "priority")
        check.require_parameter(instruction, "priority", priority, (0, 1, 2, 3))


def _check_dynamic(dst: NkiTensor, src: NkiTensor, priority: int | None, dge_mode: Any) -> None:
    _check_priority("dma_copy", priority)
    if dge_mode is _dge.none:
        violation("NKI-DMA-DGE", "dma_copy", "dge_mode", "none with a dynamic address", "swdge")
    for name, t in (("dst", dst), ("src", src)):
        if isinstance(t.lookup, ColumnLookup):
            violation("NKI-INDIRECT", "dma_copy", name, "an .indirect() view", "compute engines")
        if isinstance(t.lookup, VectorLookup):
            if dge_mode is _dge.hwdge:
                violation("NKI-DMA-DGE", "dma_copy", "dge_mode", "hwdge with rows", "swdge")
            index = t.lookup.index
            if index.free_size != 1 or index.shape[0] != t.shape[0]:
                violation(
                    "NKI-DMA-INDEX", "dma_copy", f"{name} index", index.shape, (t.shape[0], 1)
                )
    if dge_mode is _dge.hwdge and dst.dtype != src.dtype:
        violation("NKI-DMA-DGE", "dma_copy", "dtypes with hwdge", (dst.dtype, src.dtype), "equal")


def _run(t: NkiTensor) -> int:
    """Elements of one contiguous run of a view."""
    run = 1
    last = 1 if t.on_chip else 0
    for dim in range(len(t.shape) - 1, last - 1, -1):
        if t.shape[dim] != 1 and t.strides[dim] != run:
            break
        run *= t.shape[dim]
    return run


def _memory(t: NkiTensor) -> str:
    return "sbuf" if t.buffer is SBUF else "hbm"


def _count(instruction: str, dst: NkiTensor, *sources: NkiTensor) -> None:
    counters = machine.current().counters
    counters.add(instruction, "dma", dst.size, 0)
    for src in sources:
        run = min(_run(src), _run(dst))
        size = src.itemsize
        counters.transfer(_memory(src), _memory(dst), src.size * size, src.size // run, run * size)


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: tuple[int, ...] | None = None,
    priority: int | None = None,
    dge_mode: Any = _dge.unknown,
    oob_mode: Any = _oob.error,
    name: str | None = None,
) -> NkiInstruction:
    """Transpose while copying into SBUF: axes (1, 0), (2, 1, 0) or (3, 1, 2, 0) by rank.

    Args:
        dst: SBUF tile of exactly the transposed shape.
        src: HBM or SBUF view of the same dtype; with a vector offset its rows are gathered first.
        axes: The permutation, if named.
        priority: 0 to 3, NeuronCore-v4.
        dge_mode: `hwdge` for direct, `swdge` for gathered.
        oob_mode: `skip` leaves columns of rows out of bounds alone.
        name: Unused here.
    """
    instruction = "dma_transpose"
    check.require_buffer(instruction, "dst", dst, SBUF)
    check.require_buffer(instruction, "src", src, *_REACHED)
    _check_priority(instruction, priority)
    dge_mode = check.require_enum(instruction, "dge_mode", dge_mode, _dge)
    oob_mode = check.require_enum(instruction, "oob_mode", oob_mode, _oob)
    check.require_same_dtype(instruction, dst, src)
    order = _AXES.get(src.ndim)
    if order is None:
        violation("NKI-SHAPE", instruction, "src dimensions", src.ndim, "2 to 4")
        raise AssertionError
    if axes is not None and tuple(axes) != order:
        violation("NKI-PARAMETER", instruction, "axes", tuple(axes), order)
    check.require_shape(instruction, "dst", dst.shape, [src.shape[axis] for axis in order])
    if dst.shape[0] > PARTITIONS:
        violation("NKI-PARTITIONS", instruction, "dst", dst.shape[0], PARTITIONS)
    gathered = isinstance(src.lookup, VectorLookup)
    if gathered:
        _check_gather_transpose(src, dge_mode)
    else:
        _check_transpose(src, dge_mode, oob_mode)
    if src.lookup is None:
        write(dst, read(src, instruction).transpose(order), instruction)
    else:
        values, valid = gather(src, instruction, skip=oob_mode is _oob.skip)
        turned = values.transpose(order)
        if valid is None:
            write(dst, turned, instruction)
        else:
            where = np.broadcast_to(valid, dst.shape)  # rows of src are the last axis of dst
            write_where(dst, turned, where, instruction)
    _count(instruction, dst, src)
    return NkiInstruction(instruction)


def _check_transpose(src: NkiTensor, dge_mode: Any, oob_mode: Any) -> None:
    rule, instruction = "NKI-DMA-TRANSPOSE", "dma_transpose"
    if oob_mode is _oob.skip and src.lookup is None:
        violation("NKI-DMA-OOB-MODE", instruction, "oob_mode", "skip on a static view", "error")
    if dge_mode is _dge.unknown:
        return
    if dge_mode is not _dge.hwdge:
        mode = "NKI-DMA-TRANSPOSE-MODE"
        violation(mode, instruction, "dge_mode", dge_mode.name, "unknown or hwdge")
        return
    check.require_generation(instruction, 3, "dge_mode hwdge")
    if src.itemsize != 2:
        violation(rule, instruction, "src dtype", src.dtype, "a 2-byte dtype")
    if src.shape[-1] > PARTITIONS:
        violation(rule, instruction, "src.shape[-1]", src.shape[-1], PARTITIONS)
    rows = src.shape[0]
    if src.ndim == 2 and rows != 16:
        violation(rule, instruction, "src.shape[0]", rows, 16)
    if src.ndim > 2 and (rows not in {1, 2, 4, 8, 16} or rows * src.shape[-2] % 16):
        violation(rule, instruction, "src.shape", src.shape, "shape[0] * shape[-2] % 16 == 0")


def _check_gather_transpose(src: NkiTensor, dge_mode: Any) -> None:
    rule, instruction = "NKI-DMA-GATHER-TRANSPOSE", "dma_transpose"
    check.require_generation(instruction, 3, "vector_offset")
    index = src.lookup.index
    checks = (
        ("dge_mode", dge_mode.name, "unknown or swdge", dge_mode in {_dge.unknown, _dge.swdge}),
        ("src dtype", src.dtype, "a 2-byte dtype", src.itemsize == 2),
        ("src.shape[-1]", src.shape[-1], PARTITIONS, src.shape[-1] <= PARTITIONS),
        ("src.shape[0]", src.shape[0], "a multiple of 16", src.shape[0] % 16 == 0),
        ("index dtype", index.dtype, "uint32", index.dtype == "uint32"),
        ("index dimensions", index.ndim, 2, index.ndim == 2),
        (
            "index.shape[0]",
            index.shape[0],
            "16 to 128 by 16",
            16 <= index.shape[0] <= PARTITIONS and index.shape[0] % 16 == 0,
        ),
        (
            "index.shape",
            index.shape,
            "128 rows when there are several columns",
            index.shape[-1] == 1 or index.shape[0] == PARTITIONS,
        ),
        ("index size", index.size, f">= {src.shape[0]}", index.size >= src.shape[0]),
        (
            "src.shape",
            src.shape,
            "1 in dimension 1 or 2 of four",
            src.ndim != 4 or 1 in src.shape[1:3],
        ),
    )
    for operand, value, limit, kept in checks:
        if not kept:
            violation(rule, instruction, operand, value, limit)


def dma_compute(
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Any,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: Any = _oob.error,
    name: str | None = None,
) -> NkiInstruction:
    """Add sources in float32 and store the sum; with a vector offset, add into or from rows.

    Args:
        dst: Destination in HBM or SBUF.
        srcs: Up to 16 tensors of as many elements as `dst`.
        reduce_op: `nl.add`.
        scales: None or ones.
        unique_indices: Must stay True with a vector offset.
        oob_mode: What an out-of-bounds index does.
        name: Unused here.
    """
    instruction = "dma_compute"
    check.require_buffer(instruction, "dst", dst, *_REACHED)
    if not 1 <= len(srcs) <= DMA_SOURCES_MAX:
        violation("NKI-DMA-COMPUTE", instruction, "srcs", len(srcs), f"1 to {DMA_SOURCES_MAX}")
    if op_name(reduce_op) != "add":
        violation("NKI-DMA-COMPUTE", instruction, "reduce_op", op_name(reduce_op), "add")
    if scales is not None and any(scale != 1.0 for scale in scales):
        violation("NKI-DMA-COMPUTE", instruction, "scales", tuple(scales), "None or ones")
    for i, src in enumerate(srcs):
        check.require_buffer(instruction, f"srcs[{i}]", src, *_REACHED)
        if src.size != dst.size:
            violation("NKI-SHAPE", instruction, f"srcs[{i}] elements", src.size, dst.size)
    skip = check.require_enum(instruction, "oob_mode", oob_mode, _oob) is _oob.skip
    if any(t.lookup is not None for t in (dst, *srcs)):
        _modify(dst, srcs, unique_indices=unique_indices, skip=skip)
    else:
        if skip:
            violation("NKI-DMA-OOB-MODE", instruction, "oob_mode", "skip on static views", "error")
        total = read_f32(srcs[0], instruction).reshape(dst.shape)
        for src in srcs[1:]:
            total = total + read_f32(src, instruction).reshape(dst.shape)
        write(dst, total, instruction)
    _count(instruction, dst, *srcs)
    return NkiInstruction(instruction)


def _modify(dst: NkiTensor, srcs: Sequence[NkiTensor], *, unique_indices: bool, skip: bool) -> None:
    """Read, modify, write: rows of HBM chosen by data, plus a tile."""
    rule, instruction = "NKI-DMA-RMW", "dma_compute"
    if len(srcs) != 2:
        violation(rule, instruction, "srcs", len(srcs), 2)
    if not unique_indices:
        violation(rule, instruction, "unique_indices", unique_indices, True)
    dynamic = [src for src in srcs if src.lookup is not None]
    static = [src for src in srcs if src.lookup is None]
    if len(dynamic) != 1:
        violation(rule, instruction, "srcs with vector_offset", len(dynamic), 1)
    rows, tile = dynamic[0], static[0]
    same = rows if dst.lookup is not None else tile
    if same.storage is not dst.storage or same.offset != dst.offset:
        violation(rule, instruction, "dst", dst, f"the memory of {same}")
    current, valid = gather(rows, instruction, skip=skip)
    total = to_float32(current).reshape(dst.shape) + read_f32(tile, instruction).reshape(dst.shape)
    if dst.lookup is not None:
        index = read(rows.lookup.index, instruction).reshape(-1)
        kept = index if valid is None else index[valid]
        if len(np.unique(kept)) != len(kept):
            violation(rule, instruction, "indices", "repeated", "each row once")
        scatter(dst, total, instruction, skip=skip)
    elif valid is None:
        write(dst, total, instruction)
    else:
        _write_rows(dst, total, valid, instruction)
