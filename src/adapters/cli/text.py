# SPDX-License-Identifier: Apache-2.0
"""Plain text for terminals: aligned columns and readable sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def size(num_bytes: int) -> str:
    """Bytes in the largest unit of which there is at least one."""
    for scale, unit in _UNITS:
        if num_bytes >= scale:
            return f"{num_bytes / scale:.2f} {unit}"
    return f"{num_bytes} B"


def section(title: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A title and indented rows, whose columns are as wide as they need to be."""
    cells = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    yield title
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(padded)).rstrip()
    yield ""


def bullets(title: str, lines: Sequence[str]) -> Iterator[str]:
    """A title and a list; nothing at all when the list is empty."""
    if lines:
        yield title
        yield from (f"  - {line}" for line in lines)
        yield ""
