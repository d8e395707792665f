# SPDX-License-Identifier: Apache-2.0
"""Table, CSV file and picture of ``benchmarks/scaling.py``."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.markdown import number, replace_part

FIELDS = ("sweep", "x", "value", "low", "high")
PANELS = ("batch", "context", "programs")
LABELS = {
    "batch": "requests",
    "context": "tokens of context, 8 requests",
    "programs": "programs compiled",
}


def table(points: Sequence[Any]) -> str:
    """One Markdown table for each thing that was varied; a column for each quantity."""
    parts = []
    for panel in PANELS:
        chosen = [point for point in points if point.sweep.endswith(f"by {panel}")]
        sweeps = list(dict.fromkeys(point.sweep for point in chosen))
        if not sweeps:
            continue
        heads = [LABELS[panel], *(_head(sweep) for sweep in sweeps)]
        rows = [heads, ["---"] * len(heads)]
        for x in sorted({point.x for point in chosen}):
            cells = {point.sweep: _cell(point) for point in chosen if point.x == x}
            rows.append([str(x), *(cells.get(sweep, "-") for sweep in sweeps)])
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(parts)


def _head(sweep: str) -> str:
    name = sweep.partition(", by")[0]
    return f"{name}, {'MiB' if name == 'memory' else 'ms'}"


def _cell(point: Any) -> str:
    if point.low == point.high:
        return number(point.value)
    return f"{number(point.value)} ({number(point.low)}..{number(point.high)})"


def draw(points: Sequence[Any], file: Path) -> None:
    """A PNG with a panel for each thing that was varied; needs the extra ``plot``."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    views = {
        (panel, host): [
            point
            for point in points
            if point.sweep.endswith(f"by {panel}")
            and _head(point.sweep).endswith("ms")
            and ("without" in point.sweep) == host
        ]
        for panel in PANELS
        for host in (False, True)
    }
    views = {view: chosen for view, chosen in views.items() if chosen}
    figure, axes = plt.subplots(1, len(views), figsize=(3.8 * len(views), 3.2), squeeze=False)
    for ((panel, _), chosen), axis in zip(views.items(), axes[0], strict=True):
        for sweep in dict.fromkeys(point.sweep for point in chosen):
            line = [point for point in chosen if point.sweep == sweep]
            x = [point.x for point in line]
            axis.plot(x, [point.value for point in line], "o-", label=sweep.partition(", by")[0])
            axis.fill_between(x, [p.low for p in line], [p.high for p in line], alpha=0.2)
        axis.set_xlabel(LABELS[panel])
        axis.set_ylabel("ms")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def publish(points: Sequence[Any], settings: Mapping[str, Any], page: Path) -> str:
    """Write the CSV file and the picture next to the page, and its section; returns that."""
    folder = page.with_suffix("")
    draw(points, folder / "scaling.png")
    with (folder / "scaling.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        writer.writerows(
            [p.sweep, p.x, *(f"{v:.5g}" for v in (p.value, p.low, p.high))] for p in points
        )
    how = (
        f"{Path(settings['model']).name}, {settings['dtype']}, {settings['threads']} threads, "
        f"`{json.dumps(settings['ours'])}`; medians and ranges of {settings['rounds']} rounds."
    )
    text = f"{how}\n\n{table(points)}\n\n![scaling]({folder.name}/scaling.png)"
    replace_part(page, "scaling", text, "## Cost of a step")
    return text
