# SPDX-License-Identifier: Apache-2.0
"""From results to the page: table, notes, failures, pictures."""

from __future__ import annotations

from pathlib import Path

from benchmarks.compare import markdown, plots, serving, workloads
from benchmarks.compare.engines import ENGINES, MACHINE, MEMORY, OURS
from benchmarks.compare.ratios import Line, lines
from benchmarks.compare.results import Results
from benchmarks.compare.starts import COLD, WARM

TITLES = {engine.name: engine.title for engine in (*ENGINES, MEMORY)}
ORDER = [
    *(workload.name for workload in (*workloads.FULL, workloads.BANDWIDTH)),
    *(load.name for load in serving.FULL),
    COLD,
    WARM,
]
LEGEND = (
    "Medians of the rounds. In brackets how many times better trnport is than that engine, above 1 "
    "where it is better, below 1 where it is worse: median and range of the ratios of each round."
)


def summarise(results: Results, titles: dict[str, str]) -> str:
    """The table, what failed, and what it was measured with, as Markdown.

    Args:
        results: All of them.
        titles: Titles of the workloads by name.
    """
    found = ordered(results)
    parts = [LEGEND, markdown.table(found, TITLES, titles)]
    parts += [text for text in (bandwidth_note(found),) if text]
    parts += ["\n".join(items) for items in (markdown.failures(found, TITLES),) if items]
    parts.append("\n".join(["Measured with:", "", *markdown.notes(results.settings)]))
    return "\n\n".join(parts)


def ordered(results: Results) -> list[Line]:
    """The lines of the table, in the order of a full run."""

    def place(line: Line) -> int:
        return ORDER.index(line.workload) if line.workload in ORDER else len(ORDER)

    return sorted(lines(results.rows, OURS), key=place)


def bandwidth_note(found: list[Line], weights: float | None = None) -> str:
    """How close decoding one request comes to reading the weights once for each token."""
    medians = {
        (line.workload, line.metric, name): cell.median
        for line in found
        for name, cell in line.cells.items()
    }
    gigabytes = medians.get(("bandwidth", "gigabytes", MACHINE))
    rate = medians.get(("decode-b1", "decode", OURS))
    if not gigabytes or not rate:
        return ""
    limit = gigabytes * 1e9 / (weights or WEIGHTS)
    return (
        f"Reading {(weights or WEIGHTS) / 1e6:.0f} MB of weights for each token at "
        f"{gigabytes:.1f} GB/s allows {limit:.0f} tok/s; trnport reaches {rate / limit:.0%} of it "
        "at batch 1."
    )


WEIGHTS = 269e6
"""Bytes of the demo model in bfloat16."""


def publish(results: Results, titles: dict[str, str], page: Path) -> str:
    """Write the page and the pictures next to it; returns the Markdown."""
    text = summarise(results, titles)
    folder = page.with_suffix("")
    pictures = plots.draw(ordered(results), TITLES, titles, folder)
    links = "\n".join(f"![{file.stem}]({folder.name}/{file.name})" for file in pictures)
    markdown.replace_part(page, "comparison", f"{text}\n\n{links}", "## Comparison")
    return text
