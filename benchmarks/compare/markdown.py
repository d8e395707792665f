# SPDX-License-Identifier: Apache-2.0
"""The table for people, and its place in a page that people write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.ratios import Cell, Line
from benchmarks.compare.workloads import METRICS


def number(value: float) -> str:
    """Three digits, and all those before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def cell(found: Cell | None, failed: bool) -> str:
    """Median, then how many times better ours is: median and range of the rounds."""
    if found is None:
        return "failed" if failed else "-"
    if not found.ratios:
        return number(found.median)
    low, high = min(found.ratios), max(found.ratios)
    return f"{number(found.median)} (**{found.ratio:.2f}x**, {low:.2f}..{high:.2f})"


def table(lines: Sequence[Line], titles: Mapping[str, str], workloads: Mapping[str, str]) -> str:
    """A Markdown table.

    Args:
        lines: One each.
        titles: Titles of the engines by name, in the order of the columns.
        workloads: Titles of the workloads by name.
    """
    present = [
        name for name in titles if any(name in line.cells or name in line.errors for line in lines)
    ]
    head = ["workload", "metric", *(titles[name] for name in present)]
    rows = [head, ["---"] * len(head)]
    for line in lines:
        metric = METRICS.get(line.metric)
        rows.append(
            [
                workloads.get(line.workload, line.workload),
                f"{metric.title}, {metric.unit}" if metric else "-",
                *(cell(line.cells.get(name), name in line.errors) for name in present),
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def failures(lines: Sequence[Line], titles: Mapping[str, str]) -> list[str]:
    """One item for each engine that could not do some workload, with the reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        for name, error in line.errors.items():
            names = reasons.setdefault((name, error.replace("|", "/")), [])
            if line.workload not in names:
                names.append(line.workload)
    return [
        f"- {titles.get(name, name)} failed in {', '.join(names)}: {error}"
        for (name, error), names in reasons.items()
    ]


def notes(described: Mapping[str, Any]) -> list[str]:
    """One item for each thing that was noted beside the numbers."""
    items = []
    for key, value in sorted(described.items()):
        parts = value.items() if isinstance(value, Mapping) else [("", value)]
        text = ", ".join(f"{name} {part}".strip() for name, part in parts)
        items.append(f"- {key}: {text}")
    return items


def replace_part(page: Path, name: str, text: str, heading: str) -> None:
    """Put generated text between its two markers; they are added at the end where missing.

    Args:
        page: Markdown file, made where there is none.
        name: Of the markers.
        text: Between them.
        heading: Put before new markers.
    """
    begin, end = f"<!-- {name}: begin, generated -->", f"<!-- {name}: end -->"
    old = page.read_text() if page.exists() else "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
    if begin in old and end in old:
        before, _, rest = old.partition(begin)
        _, _, after = rest.partition(end)
    else:
        before, after = f"{old.rstrip()}\n\n{heading}\n\n", "\n"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}")
