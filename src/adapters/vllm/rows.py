# SPDX-License-Identifier: Apache-2.0
"""Tell vLLM's logits processors how the rows of the batch changed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import attrs

UNIDIRECTIONAL = "move"
SWAP = "swap"

_R = TypeVar("_R", bound=Hashable)


@attrs.frozen
class RowChanges(Generic[_R]):
    """How to get from one order of rows to another; apply in this order.

    Attributes:
        removed: Rows whose request is gone and that no new request took over.
        added: (row, request) of new requests, which may take over a removed row.
        moved: (from, to, kind): SWAP exchanges two requests, UNIDIRECTIONAL moves one into
            an empty row.
    """

    removed: tuple[int, ...] = ()
    added: tuple[tuple[int, _R], ...] = ()
    moved: tuple[tuple[int, int, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.removed or self.added or self.moved)


def row_changes(before: Sequence[_R], after: Sequence[_R]) -> RowChanges[_R]:
    """Compute the changes between two orders of requests.

    A request that stays keeps its identity through moves, so that processors which gather
    state over a request's life do not start anew when a neighbour finishes.

    Args:
        before: Requests by row, each once.
        after: The same, later.
    """
    staying = set(before) & set(after)
    free = [row for row, request in enumerate(before) if request not in staying]
    layout: dict[int, _R] = {
        row: request for row, request in enumerate(before) if request in staying
    }
    added = []
    next_row = len(before)
    for request in after:
        if request in staying:
            continue
        if free:
            row = free.pop(0)
        else:
            row, next_row = next_row, next_row + 1
        layout[row] = request
        added.append((row, request))
    return RowChanges(tuple(free), tuple(added), tuple(_moves(layout, after)))


def _moves(layout: dict[int, _R], after: Sequence[_R]) -> list[tuple[int, int, str]]:
    rows = {request: row for row, request in layout.items()}
    moves = []
    for target, request in enumerate(after):
        source = rows[request]
        if source == target:
            continue
        displaced = layout.get(target)
        moves.append((source, target, UNIDIRECTIONAL if displaced is None else SWAP))
        layout[target] = request
        rows[request] = target
        if displaced is None:
            del layout[source]
        else:
            layout[source] = displaced
            rows[displaced] = source
    return moves
