# SPDX-License-Identifier: Apache-2.0
"""Copies, casts, gathers, transposes and matmuls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tests.adapters.nki.real.program import (
    ROUNDING,
    Program,
    fresh,
    integers,
    load,
    normal,
    store,
)
from trnport.adapters.nki.nki import nisa, nl

EDGES = torch.tensor([[0.5, 1.5, -0.5, 2.5, 127.4, 300.7, -129.0, -7.5, 3e9, -3e9, 65504.0, 0.0]])


def cast(dtype: str) -> Callable[..., Any]:
    """Kernel that casts fp32 to a dtype and stores it as fp32."""

    def kernel(x: Any) -> Any:
        narrow = fresh(x.shape, getattr(nl, dtype))
        nisa.tensor_copy(dst=narrow, src=load(x))
        wide = fresh(x.shape)
        nisa.tensor_copy(dst=wide, src=narrow)
        return store(wide)

    return kernel


def gathered_rows(x: Any, rows: Any) -> Any:
    """Rows of HBM by index; indices past the end leave the tile as it was."""
    out = fresh((rows.shape[0], x.shape[1]), x.dtype)
    nisa.memset(dst=out, value=7)
    source = x.ap(
        [[x.shape[1], rows.shape[0]], [1, x.shape[1]]], vector_offset=load(rows), indirect_dim=0
    )
    nisa.dma_copy(dst=out, src=source, oob_mode=nisa.oob_mode.skip)
    return store(out)


def row_at(x: Any, row: Any) -> Any:
    """Two rows of HBM from an index that a tensor holds."""
    out = fresh((2, x.shape[1]))
    pattern = [[x.shape[1], 2], [1, x.shape[1]]]
    nisa.dma_copy(dst=out, src=x.ap(pattern, scalar_offset=load(row), indirect_dim=0))
    return store(out)


def strided(x: Any) -> Any:
    """Every second column backwards in pairs: a pattern of three dimensions on chip."""
    tile = load(x)
    out = fresh((x.shape[0], 3, 2))
    nisa.tensor_copy(dst=out, src=tile.ap([[12, x.shape[0]], [4, 3], [2, 2]], offset=1))
    return store(out)


def added_rows(x: Any, rows: Any, base: Any) -> Any:
    """Scatter that adds rows to HBM."""
    out = nl.ndarray(base.shape, dtype=base.dtype, buffer=nl.hbm)
    nisa.dma_copy(dst=out, src=base)
    target = out.ap(
        [[x.shape[1], x.shape[0]], [1, x.shape[1]]], vector_offset=load(rows), indirect_dim=0
    )
    nisa.dma_compute(target, [target, load(x)], nl.add)
    return store(load(out))


def dma_turned(x: Any) -> Any:
    """A transpose by DMA."""
    out = fresh((x.shape[1], x.shape[0]), x.dtype)
    nisa.dma_transpose(dst=out, src=x)
    return store(out)


def turned(engine: str) -> Callable[..., Any]:
    """Kernel that transposes on an engine."""

    def kernel(x: Any) -> Any:
        shape = (x.shape[1], x.shape[0])
        buffer = nl.psum if engine == "tensor" else nl.sbuf
        middle = nl.ndarray(shape, dtype=x.dtype, buffer=buffer)
        nisa.nc_transpose(dst=middle, data=load(x), engine=getattr(nisa.engine, engine))
        out = fresh(shape, x.dtype)
        nisa.tensor_copy(dst=out, src=middle)
        return store(out)

    return kernel


def matmul(x: Any, w: Any) -> Any:
    """One product."""
    psum = nl.ndarray((x.shape[1], w.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=psum, stationary=load(x), moving=load(w))
    out = fresh(psum.shape)
    nisa.tensor_copy(dst=out, src=psum)
    return store(out)


def overlapping(x: Any, w: Any) -> Any:
    """Products into overlapping columns: the first write of a place sets it, later ones add."""
    psum = nl.ndarray((x.shape[1], 24), dtype=nl.float32, buffer=nl.psum)
    stationary, moving = load(x), load(w)
    for start in (0, 8):
        nisa.nc_matmul(dst=psum[:, nl.ds(start, 16)], stationary=stationary, moving=moving)
    nisa.nc_matmul(dst=psum[:, nl.ds(0, 16)], stationary=stationary, moving=moving, accumulate=True)
    out = fresh(psum.shape)
    nisa.tensor_copy(dst=out, src=psum)
    return store(out)


def column_tiles(x: Any, w: Any) -> Any:
    """Two products side by side in the array's columns."""
    psum = nl.ndarray((128, w.shape[1]), dtype=nl.float32, buffer=nl.psum)
    stationary, moving = load(x), load(w)
    for i in range(2):
        nisa.nc_matmul(
            dst=psum[64 * i : 64 * i + 64, :],
            stationary=stationary,
            moving=moving,
            tile_position=(0, 64 * i),
            tile_size=(128, 64),
        )
    out = fresh(psum.shape)
    nisa.tensor_copy(dst=out, src=psum)
    return store(out)


def _pair(rows: int, m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return normal(rows, m, dtype=dtype), normal(rows, n, seed=1, dtype=dtype)


_TABLE = normal(37, 6, seed=2)
_ROWS = integers([[3], [36], [0], [99], [3]])

PROGRAMS = {
    **{
        f"cast to {name}": Program(cast(name), lambda: (EDGES,))
        for name in ("int8", "uint8", "int16", "uint16", "int32", "bfloat16", "float16")
    },
    **{
        f"cast to {name}": Program(cast(name), lambda: (normal(5, 9) * 20,))
        for name in ("float8_e4m3", "float8_e5m2")
    },
    "gather rows": Program(gathered_rows, lambda: (_TABLE, _ROWS)),
    "gather integer rows": Program(gathered_rows, lambda: (integers(_TABLE.long() * 9), _ROWS)),
    "rows at a tensor": Program(row_at, lambda: (_TABLE, integers([[5]]))),
    "strided pattern": Program(strided, lambda: (normal(5, 12),)),
    "scatter that adds": Program(
        added_rows, lambda: (normal(16, 6), integers([[i * 2] for i in range(16)]), _TABLE)
    ),
    "transpose by dma": Program(dma_turned, lambda: (normal(32, 20, dtype=torch.bfloat16),)),
    "transpose on tensor": Program(turned("tensor"), lambda: (normal(33, 65),)),
    "transpose on vector": Program(turned("vector"), lambda: (normal(17, 31),)),
    **{
        f"matmul of {dtype}": Program(
            matmul, functools.partial(_pair, 97, 33, 130, dtype), ROUNDING
        )
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    },
    "matmul into overlapping columns": Program(
        overlapping, functools.partial(_pair, 64, 32, 16, torch.bfloat16), ROUNDING
    ),
    "matmul in column tiles": Program(
        column_tiles, functools.partial(_pair, 128, 64, 40, torch.bfloat16), ROUNDING
    ),
}
