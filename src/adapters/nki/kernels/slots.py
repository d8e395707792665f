# SPDX-License-Identifier: Apache-2.0
"""Row numbers of cache slots, computed on the core.

A cache ``[N, Hk, S, D]`` is passed as the matrix of its rows, ``[N * Hk * S, D]``. Slot
``block * S + offset`` of head h is row ``(block * Hk + h) * S + offset``; kernels compute the row
of head 0 and add the heads' distance in the access pattern. A slot that must not be touched gets
row -1, which is out of bounds, and the transfer skips it: the memory behind it is never read.
"""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.tiles import PARTITIONS, load
from trnport.adapters.nki.nki import nisa, nl


def integer(shape: tuple[int, ...], value: int) -> Any:
    """A new int32 tile in SBUF filled with ``value``."""
    tile = nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=value)
    return tile


def floor_division(numbers: Any, divisor: int) -> Any:
    """``floor(numbers / divisor)`` of a tile of integers from -1, as int32.

    Adding a half before the division and taking a half after it puts every quotient at least
    ``0.5 / divisor`` away from a tie, and the cast to integers rounds to the nearest. Exact in
    fp32 for numbers below 2**22, or 2**23 when the divisor is a power of two.
    """
    wide = nl.ndarray(numbers.shape, dtype=nl.float32, buffer=nl.sbuf)
    result = nl.ndarray(numbers.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=wide,
        data=numbers,
        op0=nl.add,
        operand0=0.5,
        op1=nl.multiply,
        operand1=1.0 / divisor,
    )
    nisa.tensor_scalar(dst=result, data=wide, op0=nl.subtract, operand0=0.5)
    return result


def slot_rows(slots: Any, heads: int, block_size: int) -> Any:
    """Rows of head 0 for slots ``[P, 1]`` int32; -1 stays negative."""
    rows = nl.ndarray(slots.shape, dtype=nl.int32, buffer=nl.sbuf)
    blocks = floor_division(slots, block_size)
    stride = integer(slots.shape, (heads - 1) * block_size)
    nisa.tensor_tensor(dst=rows, data1=blocks, data2=stride, op=nl.multiply)
    nisa.tensor_tensor(dst=rows, data1=rows, data2=slots, op=nl.add)
    return rows


def piece_size(block_size: int) -> int:
    """Positions of one gather: whole blocks up to 128 positions, or 128 of a larger block."""
    if block_size > PARTITIONS:
        return PARTITIONS
    return PARTITIONS // block_size * block_size


def chunk_size(block_size: int) -> int:
    """Positions of one softmax step: up to 512, whole blocks and whole pieces."""
    if block_size > PARTITIONS:
        return 4 * PARTITIONS // block_size * block_size
    return 4 * piece_size(block_size)


def positions_of(pieces: int, size: int) -> Any:
    """Positions by piece, fp32 ``[size, pieces]``: piece j starts at position ``j * size``."""
    tile = nl.ndarray((size, pieces), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=tile, pattern=[[size, pieces]], offset=0, channel_multiplier=1)
    return tile


def blocks_of(table: Any, row: int, pieces: int, size: int, block_size: int) -> Any:
    """Blocks that hold each position, int32 ``[size, pieces]``; -1 beyond the table.

    Args:
        table: ``[B, M]`` int32 in HBM.
        row: Row of the table.
        pieces: Pieces that cover ``M * block_size`` positions.
        size: Positions of a piece.
        block_size: Positions of a block.
    """
    columns = table.shape[1]
    blocks = integer((size, pieces), -1)
    for j in range(pieces):
        first = j * size // block_size
        if block_size > PARTITIONS:
            entry = table[row : row + 1, first : first + 1].broadcast(0, size)
            nisa.dma_copy(dst=blocks[:, j : j + 1], src=entry)
        else:
            count = min(size // block_size, columns - first)
            entries = table[row : row + 1, first : first + count]
            repeated = entries.expand_dim(2).broadcast(2, block_size)
            nisa.dma_copy(dst=blocks[0 : count * block_size, j : j + 1], src=repeated)
    return blocks


def offsets_in_block(pieces: int, size: int, block_size: int) -> Any:
    """Offset of each position in its block, int32 ``[size, pieces]``."""
    numbers = nl.ndarray((size, pieces), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=numbers, pattern=[[size, pieces]], offset=0, channel_multiplier=1)
    starts = floor_division(numbers, block_size)
    length = integer((size, pieces), block_size)
    nisa.tensor_tensor(dst=starts, data1=starts, data2=length, op=nl.multiply)
    nisa.tensor_tensor(dst=numbers, data1=numbers, data2=starts, op=nl.subtract)
    return numbers


def cached_rows(table: Any, row: int, heads: int, block_size: int, newest: Any, oldest: Any) -> Any:
    """Rows of head 0 for every position of a table's row, -1 where it must not be read.

    Args:
        table: ``[B, M]`` int32 in HBM.
        row: Row of the table.
        heads: KV heads of the cache.
        block_size: Positions of a block.
        newest: ``[128, 1]`` fp32, the last position that may be read.
        oldest: Like ``newest``, the position before the first one.

    Returns:
        int32 ``[size, pieces]``; piece j holds positions ``j * size`` and the following.
    """
    size = piece_size(block_size)
    pieces = (table.shape[1] * block_size + size - 1) // size
    blocks = blocks_of(table, row, pieces, size, block_size)
    rows = nl.ndarray((size, pieces), dtype=nl.int32, buffer=nl.sbuf)
    stride = integer((size, pieces), heads * block_size)
    nisa.tensor_tensor(dst=rows, data1=blocks, data2=stride, op=nl.multiply)
    inside = offsets_in_block(pieces, size, block_size)
    nisa.tensor_tensor(dst=rows, data1=rows, data2=inside, op=nl.add)
    usable = within(positions_of(pieces, size), newest[0:size, :], oldest[0:size, :], blocks, -0.5)
    kept = integer((size, pieces), -1)
    nisa.tensor_copy_predicated(dst=kept, src=rows, predicate=usable)
    return kept


def within(positions: Any, newest: Any, oldest: Any, owned: Any, above: float) -> Any:
    """Which positions are owned and in reach.

    Args:
        positions: ``[P, F]`` fp32.
        newest: ``[P, 1]`` fp32, the last position in reach.
        oldest: ``[P, 1]`` fp32, the position before the first one in reach.
        owned: ``[P, F]`` of any dtype.
        above: Where ``owned`` is greater than this, the position is owned.

    Returns:
        ``[P, F]`` uint8, 1 or 0.
    """
    near = nl.ndarray(positions.shape, dtype=nl.float32, buffer=nl.sbuf)
    result = nl.ndarray(positions.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=near, data=positions, op0=nl.less_equal, operand0=newest)
    nisa.scalar_tensor_tensor(
        dst=near,
        data=positions,
        op0=nl.greater,
        operand0=oldest,
        op1=nl.logical_and,
        operand1=near,
    )
    nisa.scalar_tensor_tensor(
        dst=result,
        data=owned,
        op0=nl.greater,
        operand0=above,
        op1=nl.logical_and,
        operand1=near,
    )
    return result


def gather(base: Any, rows: Any, dim: int, offset: int, dtype: Any) -> Any:
    """Read rows of a matrix in HBM; a row of -1 gives zeros.

    Args:
        base: ``[R, dim]`` in HBM.
        rows: ``[P, 1]`` int32 in SBUF.
        dim: Columns.
        offset: Elements added to every address, for another head.
        dtype: Dtype of the result.

    Returns:
        ``[P, dim]`` in SBUF.
    """
    count = rows.shape[0]
    tile = nl.ndarray((count, dim), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    source = base.ap(
        pattern=[[dim, count], [1, dim]], offset=offset, vector_offset=rows, indirect_dim=0
    )
    nisa.dma_copy(dst=tile, src=source, oob_mode=nisa.oob_mode.skip)
    return tile


def broadcast_scalar(source: Any, shift: float) -> Any:
    """One number in HBM, ``[1, 1]``, plus ``shift``, on all partitions: ``[128, 1]`` fp32."""
    tile = load(source.broadcast(0, PARTITIONS), (PARTITIONS, 1), nl.float32)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=shift)
    return tile
