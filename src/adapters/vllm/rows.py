# SPDX-License-Identifier: Apache-2.0
"""Tell vLLM's logits processors how the rows of the batch changed."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

UNIDIRECTIONAL = "move"
SWAP = "swap"


@attrs.frozen
class RowChanges:
    """How to get from one order of rows to another; apply in this order.

    Attributes:
        removed: Rows whose request is gone and that no new request took over.
        added: (row, request id) of new requests, which may take over a removed row.
        moved: (from, to, kind): SWAP exchanges two requests, UNIDIRECTIONAL moves one into
            an empty row.
    """

    removed: tuple[int, ...] = ()
    added: tuple[tuple[int, str], ...] = ()
    moved: tuple[tuple[int, int, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.removed or self.added or self.moved)


def row_changes(before: Sequence[str], after: Sequence[str]) -> RowChanges:
    """Compute the changes between two orders of request ids.

    A request that stays keeps its identity through moves, so that processors which gather
    state over a request's life do not start anew when a neighbour finishes.

    Args:
        before: Request ids by row.
        after: Request ids by row.
    """
    staying = set(before) & set(after)
    free = [row for row, request_id in enumerate(before) if request_id not in staying]
    layout: dict[int, str] = {
        row: request_id for row, request_id in enumerate(before) if request_id in staying
    }
    added = []
    next_row = len(before)
    for request_id in after:
        if request_id in staying:
            continue
        if free:
            row = free.pop(0)
        else:
            row, next_row = next_row, next_row + 1
        layout[row] = request_id
        added.append((row, request_id))
    return RowChanges(tuple(free), tuple(added), tuple(_moves(layout, after)))


def _moves(layout: dict[int, str], after: Sequence[str]) -> list[tuple[int, int, str]]:
    rows = {request_id: row for row, request_id in layout.items()}
    moves = []
    for target, request_id in enumerate(after):
        source = rows[request_id]
        if source == target:
            continue
        displaced = layout.get(target)
        moves.append((source, target, UNIDIRECTIONAL if displaced is None else SWAP))
        layout[target] = request_id
        rows[request_id] = target
        if displaced is None:
            del layout[source]
        else:
            layout[source] = displaced
            rows[displaced] = source
    return moves
