# SPDX-License-Identifier: Apache-2.0
"""Functions of `nki.language` that make tensors."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import check, machine, memory, views
from trnport.adapters.nki.simulator.access import read, write
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.dtypes import cast, dtype_name, to_float32
from trnport.adapters.nki.simulator.isa.dma import dma_copy, dma_transpose
from trnport.adapters.nki.simulator.isa.matmul import nc_matmul, nc_transpose
from trnport.adapters.nki.simulator.memory import (
    HBM,
    ON_CHIP,
    PSUM,
    SBUF,
    SHARED_HBM,
    MemoryRegion,
)
from trnport.adapters.nki.simulator.rules import Rule, add, violation
from trnport.adapters.nki.simulator.targets import PARTITIONS
from trnport.adapters.nki.simulator.tensor import NkiTensor

add(
    Rule(
        "NKI-MATMUL-LAYOUT",
        "Only stationary operands that are transposed already reach the tensor engine.",
        "nki.language.matmul: transpose_x",
        relaxed=True,
    ),
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
    region = buffer if isinstance(buffer, MemoryRegion) else _region(buffer)
    return NkiTensor(sizes, kind, memory.allocate(sizes, kind, region, name, address), region, name)


def _region(buffer: Any) -> MemoryRegion:
    names = {"hbm": HBM, **{region.value: region for region in MemoryRegion}}
    found = names.get(buffer)
    if found is None:
        violation("NKI-PARAMETER", "nl.ndarray", "buffer", repr(buffer), ", ".join(names))
    assert found is not None
    return found


def full(shape: Any, fill_value: Any, dtype: Any, buffer: Any = SBUF, name: str = "") -> NkiTensor:
    """Allocate a tensor that holds one value everywhere."""
    result = ndarray(shape, dtype, buffer, name)
    write(result, fill_value, "nl.full")
    return result


def zeros(shape: Any, dtype: Any, buffer: Any = SBUF, name: str = "") -> NkiTensor:
    """Allocate a tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, buffer: Any = SBUF, name: str = "") -> NkiTensor:
    """Allocate a tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Allocate an uninitialized tensor of the shape, dtype and buffer of `x`."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Allocate zeros of the shape, dtype and buffer of `x`."""
    return zeros(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def shared_constant(constant: Any) -> NkiTensor:
    """Return a tensor in shared HBM that holds a numpy array, or a .npy file's."""
    if isinstance(constant, str | pathlib.Path):
        constant = np.load(constant)
    values = np.asarray(constant)
    result = ndarray(values.shape, values.dtype, SHARED_HBM, "constant")
    write(result, values, "nl.shared_constant")
    return result


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """Return an n x n identity in SBUF; one per size and dtype and core.

    Args:
        n: Rows and columns, up to 128.
        dtype: Dtype of the result.
        dst: SBUF tile to fill instead.
    """
    if n > PARTITIONS:
        violation("NKI-PARTITIONS", "nl.shared_identity_matrix", "n", n, PARTITIONS)
    if dst is not None:
        write(dst, np.eye(n, dtype=np.float32), "nl.shared_identity_matrix")
        return dst
    constants = machine.current().constants
    key = ("identity", n, dtype_name(dtype))
    if key not in constants:
        constants[key] = ndarray((n, n), dtype, SBUF, "identity")
        write(constants[key], np.eye(n, dtype=np.float32), "nl.shared_identity_matrix")
    found: NkiTensor = constants[key]
    return found


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Copy an HBM tensor to a new SBUF tile."""
    check.require_buffer("nl.load", "src", src, HBM, SHARED_HBM)
    result = ndarray(src.shape, dtype or src.dtype, SBUF)
    dma_copy(dst=result, src=src)
    return result


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Copy an SBUF tile to HBM."""
    check.require_buffer("nl.store", "dst", dst, HBM, SHARED_HBM)
    check.require_buffer("nl.store", "value", value, SBUF)
    dma_copy(dst=dst, src=value)


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Copy the transpose of a 2-D HBM tensor to a new SBUF tile."""
    check.require_buffer("nl.load_transpose2d", "src", src, HBM, SHARED_HBM)
    turned = ndarray((src.shape[1], src.shape[0]), src.dtype, SBUF)
    dma_transpose(dst=turned, src=src)
    return turned if dtype is None or dtype_name(dtype) == src.dtype else copy(turned, dtype)


def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Copy an SBUF or PSUM tile to a new SBUF tile; the same dtype keeps every bit."""
    check.require_tile("nl.copy", "x", x, *ON_CHIP)
    result = ndarray(x.shape, dtype or x.dtype, SBUF)
    values = read(x, "nl.copy")
    write(result, values if result.dtype == x.dtype else to_float32(values), "nl.copy")
    count("tensor_copy", "vector", x.free_size)
    return result


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Transpose an SBUF tile into a new PSUM tile."""
    result = ndarray((x.free_size, x.shape[0]), dtype or x.dtype, PSUM)
    nc_transpose(dst=result, data=x)
    return result


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """Multiply SBUF tiles into a new PSUM tile: x.T @ y with `transpose_x`, as hardware does."""
    if not transpose_x:
        violation("NKI-MATMUL-LAYOUT", "nl.matmul", "transpose_x", False, True)
        turned = transpose(x)
        x = copy(turned)
    result = ndarray((x.free_size, y.free_size), "float32", PSUM)
    nc_matmul(dst=result, stationary=x, moving=y)
    return result


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """Insert a dimension of size 1."""
    return views.expand_dim(x, axis)


def broadcast_to(x: NkiTensor, shape: Any, dtype: Any = None) -> NkiTensor:
    """Repeat free dimensions of size 1; no copy unless the dtype changes."""
    result = x
    for dim, size in enumerate(shape):
        if result.shape[dim] != size:
            result = views.broadcast(result, dim, size)
    return result if dtype is None or dtype_name(dtype) == x.dtype else copy(result, dtype)


def printed(prefix: str, tensor: NkiTensor) -> str:
    """Return what `nl.device_print` shows."""
    return f"{prefix} {tensor!r}\n{cast(read(tensor, 'device_print'), tensor.dtype)}\n"
