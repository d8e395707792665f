# SPDX-License-Identifier: Apache-2.0
"""Block tables of a step: whose blocks, and for windowed layers only the last columns.

A query at position p of a layer with window W reads positions p - W + 1 to p, which lie in at
most ceil((W - 1) / S) + 1 blocks of S positions. Such a layer's table therefore starts at the
block of the first readable position, and says in an offset which position that is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from trnport.core.engine.batch import Request
from trnport.core.engine.packed import int32
from trnport.core.kv.groups import KVGroups
from trnport.core.kv.slots import NULL_BLOCK
from trnport.core.kv.spec import KVSpec


class TableKind(NamedTuple):
    """What distinguishes the tables of two layers: the group's blocks, and the window."""

    group: int = 0
    sliding_window: int | None = None

    def columns(self, context: int, block_size: int) -> int:
        """Columns of a table that serves ``context`` tokens; fixed for each program."""
        # A chunk without cached prefix reads no table; one column keeps the shape non-empty.
        whole = max(1, -(-context // block_size))
        if self.sliding_window is None:
            return whole
        return min(whole, -(-(self.sliding_window - 1) // block_size) + 1)

    def first_column(self, position: int, block_size: int) -> int:
        """Block that holds the first position which a query at ``position`` reads."""
        if self.sliding_window is None:
            return 0
        return max(0, position - self.sliding_window + 1) // block_size


def table_kinds(spec: KVSpec, groups: KVGroups | None = None) -> dict[str, TableKind]:
    """Each layer's kind of table, by name; all layers in one group when None."""
    group_of = (groups or KVGroups.single(spec)).group_of()
    return {
        layer.name: TableKind(group_of[layer.name], layer.sliding_window) for layer in spec.layers
    }


def block_tables(
    kind: TableKind,
    requests: Sequence[Request],
    positions: Sequence[int],
    *,
    context: int,
    rows: int,
    block_size: int,
) -> tuple[Tensor, list[int]]:
    """The blocks that a step's queries may read.

    Args:
        kind: Which blocks.
        requests: n requests.
        positions: For each the position of its first new token.
        context: Tokens of a row that the program serves.
        rows: Rows of the table, at least n.
        block_size: Positions per block.

    Returns:
        ``[rows, M]`` int32, unowned entries -1, and the position of each row's first column,
        0 for padding rows.
    """
    columns = kind.columns(context, block_size)
    cells = array("i", (-1,)) * (rows * columns)
    offsets = [0] * rows
    for row, (request, position) in enumerate(zip(requests, positions, strict=True)):
        first = kind.first_column(position, block_size)
        owned = request.blocks_of(kind.group)[first : first + columns]
        start = row * columns
        cells[start : start + len(owned)] = owned
        offsets[row] = first * block_size
    table = int32(cells).view(rows, columns)
    # vLLM writes the null block for "none", and for blocks that left the window.
    return table.masked_fill_(table == NULL_BLOCK, -1), offsets
