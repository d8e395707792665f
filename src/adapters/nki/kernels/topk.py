# SPDX-License-Identifier: Apache-2.0
"""The k largest of each row, equal values by lowest index, for any k.

The vector engine finds eight at a time. Each round takes the eight largest, notes where they
stand and replaces them by a number below every other. Long rows are searched piece by piece, and
the winners of the pieces are searched once more; as these are ordered by piece and then by rank,
equal values are still found lowest index first.
"""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.kernels.tiles import PARTITIONS, my_share, tiles_of
from trnport.adapters.nki.nki import nisa, nl

WIDTH = 16384
"""Most columns that one search reads."""

EIGHT = 8

TAKEN = -3.4028234663852886e38
"""Replaces what has been found: the lowest fp32 number."""

FLOOR = -3.4028232635611926e38
"""Stands for minus infinity during the search: the second lowest fp32 number."""

MINUS_INFINITY = float("-inf")


def top_k(logits: Any, k: int) -> tuple[Any, Any]:
    """Values in descending order, and where they stand.

    Args:
        logits: ``[T, V]``, V below 2**24.
        k: At most V. k rounded up to 8, times the number of pieces, is at most 16384.

    Returns:
        ``[T, k]`` in the dtype of ``logits`` and ``[T, k]`` int32.
    """
    total, width = logits.shape
    values = nl.ndarray((total, k), dtype=logits.dtype, buffer=nl.shared_hbm)
    indices = nl.ndarray((total, k), dtype=nl.int32, buffer=nl.shared_hbm)
    for i in my_share(tiles_of(total, PARTITIONS)):
        start = i * PARTITIONS
        stop = min(start + PARTITIONS, total)
        found, places = search_pieces(logits[start:stop, :], width, k)
        best = nl.ndarray((stop - start, k), dtype=logits.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=best, src=found[:, 0:k])
        where = nl.ndarray((stop - start, k), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=where, src=places[:, 0:k])
        nisa.dma_copy(dst=values[start:stop, :], src=best)
        nisa.dma_copy(dst=indices[start:stop, :], src=where)
    return values, indices


def search_pieces(logits: Any, width: int, k: int) -> tuple[Any, Any]:
    """Search rows of any width.

    Args:
        logits: ``[P, V]`` in HBM.
        width: V.
        k: Entries wanted.

    Returns:
        ``[P, at least k]`` fp32 values and uint32 columns, in SBUF.
    """
    rows = logits.shape[0]
    kept = tiles_of(k, EIGHT) * EIGHT
    pieces = tiles_of(width, WIDTH)
    values = nl.ndarray((rows, pieces * kept), dtype=nl.float32, buffer=nl.sbuf)
    columns = nl.ndarray((rows, pieces * kept), dtype=nl.uint32, buffer=nl.sbuf)
    for p in range(pieces):
        first, at = p * WIDTH, p * kept
        piece = logits[:, first : min(first + WIDTH, width)]
        search_piece(piece, first, values[:, at : at + kept], columns[:, at : at + kept])
    if pieces > 1:
        best = nl.ndarray((rows, kept), dtype=nl.float32, buffer=nl.sbuf)
        places = nl.ndarray((rows, kept), dtype=nl.uint32, buffer=nl.sbuf)
        search(values, best, places)
        chosen = nl.ndarray((rows, kept), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.nc_n_gather(dst=chosen, data=columns, indices=places)
        values, columns = best, chosen
    restore_infinity(values)
    return values, columns


def search_piece(logits: Any, first: int, values: Any, columns: Any) -> None:
    """Search rows of at most 16384 columns.

    Args:
        logits: ``[P, F]`` in HBM.
        first: Column of the whole row at which they start.
        values: ``[P, 8 * rounds]`` fp32, filled.
        columns: Like ``values``, uint32, filled with columns of the whole row.
    """
    rows, count = logits.shape
    tile = nl.ndarray((rows, max(EIGHT, count)), dtype=nl.float32, buffer=nl.sbuf)
    if count < EIGHT:
        nisa.memset(dst=tile, value=TAKEN)
    nisa.dma_copy(dst=tile[:, 0:count], src=logits)
    nisa.tensor_scalar(dst=tile[:, 0:count], data=tile[:, 0:count], op0=nl.maximum, operand0=FLOOR)
    search(tile, values, columns)
    if first > 0:
        nisa.tensor_scalar(dst=columns, data=columns, op0=nl.add, operand0=float(first))


def search(tile: Any, values: Any, columns: Any) -> None:
    """Fill ``values`` and ``columns`` ``[P, 8 * rounds]`` from ``tile [P, F]``, which is spent."""
    for first in range(0, values.shape[1], EIGHT):
        top = values[:, first : first + EIGHT]
        nisa.max8(dst=top, src=tile)
        nisa.nc_find_index8(dst=columns[:, first : first + EIGHT], data=tile, vals=top)
        nisa.nc_match_replace8(dst=tile, data=tile, vals=top, imm=TAKEN)


def restore_infinity(values: Any) -> None:
    """Put minus infinity back where the search used FLOOR."""
    lowest = nl.ndarray(values.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=lowest, data=values, op0=nl.less_equal, operand0=FLOOR)
    nisa.tensor_copy_predicated(dst=values, src=MINUS_INFINITY, predicate=lowest)
