# SPDX-License-Identifier: Apache-2.0
"""What several kernels share: tile sizes, loads and transposes."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.nki import nisa, nl

PARTITIONS = 128
"""Rows of a tile, and most columns of a stationary operand."""

BANK = 512
"""Fp32 elements of a PSUM bank, and most columns of a moving operand."""


BLOCK_BYTES = 98304
"""Bytes per partition that a block of tokens may take, so that two stages fit side by side."""

LOADED = 2048
"""Columns of a row-wise load that is transposed afterwards."""


def bytes_of(dtype: Any) -> int:
    """Bytes of an element of the dtypes that products take."""
    return 4 if dtype == nl.float32 else 2


def tokens_per_block(slices: int, dtype: Any, bytes_allowed: int) -> int:
    """Tokens whose transposed columns fit, 128 to 512: above 218 products are compute-bound.

    Args:
        slices: Slices of 128 columns.
        dtype: Dtype of the columns.
        bytes_allowed: Per partition.
    """
    fitting = bytes_allowed // (slices * bytes_of(dtype))
    return max(PARTITIONS, min(BANK, fitting // PARTITIONS * PARTITIONS))


def tiles_of(total: int, size: int) -> int:
    """How many tiles of ``size`` cover ``total``."""
    return (total + size - 1) // size


def my_share(count: int) -> range:
    """The work items of this physical core, when a logical core has two."""
    return range(nl.program_id(0), count, nl.num_programs(0))


def shares(heads: int, others: int) -> tuple[range, range]:
    """Split heads between the cores when that comes out even, else the other work items.

    Args:
        heads: KV heads.
        others: Rows, or tiles of queries.

    Returns:
        This core's heads and its other items.
    """
    if heads % nl.num_programs(0) == 0:
        return my_share(heads), range(others)
    return range(heads), my_share(others)


def row_vector(vector: Any, start: int, size: int, rows: int) -> Any:
    """View ``vector[start : start + size]`` in HBM as ``rows`` equal rows.

    Args:
        vector: ``[N]`` in HBM.
        start: First element.
        size: Elements.
        rows: Times that the row is repeated, without a copy.

    Returns:
        ``[rows, size]``, a view to load from.
    """
    return vector.reshape((1, vector.shape[0]))[:, start : start + size].broadcast(0, rows)


def load(source: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Copy from HBM into a new tile of ``shape`` and ``dtype`` in SBUF."""
    tile = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def transpose_into(dst: Any, data: Any) -> None:
    """Transpose ``data [P, F]``, both at most 128, into ``dst [F, P]`` through PSUM."""
    turned = nl.ndarray((data.shape[1], data.shape[0]), dtype=data.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=data)
    nisa.tensor_copy(dst=dst, src=turned)


def load_transposed(x: Any, start: int, count: int) -> Any:
    """Load rows of ``x`` with their columns on the partitions, ready for a contraction.

    Args:
        x: ``[T, H]`` in HBM.
        start: First row.
        count: Rows.

    Returns:
        ``[128, ceil(H / 128), count]`` in the dtype of ``x``; column ``c`` of ``x`` is at
        partition ``c % 128`` of slice ``c // 128``. The last slice may be filled partly.
    """
    width = x.shape[1]
    slices = tiles_of(width, PARTITIONS)
    turned = nl.ndarray((PARTITIONS, slices, count), dtype=x.dtype, buffer=nl.sbuf)
    for first in range(0, count, PARTITIONS):
        rows = min(PARTITIONS, count - first)
        for left in range(0, width, LOADED):
            columns = min(LOADED, width - left)
            source = x[start + first : start + first + rows, left : left + columns]
            tile = load(source, (rows, columns), x.dtype)
            for at in range(0, columns, PARTITIONS):
                part = min(PARTITIONS, columns - at)
                s = (left + at) // PARTITIONS
                transpose_into(turned[0:part, s, first : first + rows], tile[:, at : at + part])
    return turned
