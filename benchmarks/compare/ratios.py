# SPDX-License-Identifier: Apache-2.0
"""Medians and ratios: each ratio is of two numbers of the same round."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.compare.results import Row
from benchmarks.compare.workloads import METRICS


@dataclass(frozen=True)
class Cell:
    """One engine's numbers of one metric.

    Attributes:
        median: Over the rounds.
        ratios: How many times better ours is, by round; above 1 ours is better, whatever the
            metric. None for ours, empty where no round has both.
    """

    median: float
    ratios: tuple[float, ...] | None

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None


@dataclass(frozen=True)
class Line:
    """One metric of one workload, with the engines that have a number and those that failed."""

    workload: str
    metric: str
    cells: dict[str, Cell]
    errors: dict[str, str]


def better_by(metric: str, ours: float, theirs: float) -> float:
    """How many times better ours is."""
    more = METRICS[metric].more_is_better
    return ours / theirs if more else theirs / ours


def lines(rows: Iterable[Row], ours: str) -> list[Line]:
    """The table, in the order in which workloads and metrics first appear."""
    values: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    errors: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.error:
            errors.setdefault(row.workload, {})[row.engine] = row.error
        else:
            engines = values.setdefault((row.workload, row.metric), {})
            engines.setdefault(row.engine, {})[row.round] = row.value
    table = []
    for (workload, metric), engines in values.items():
        mine = engines.get(ours, {})
        cells = {}
        for name, rounds in engines.items():
            ratios = None
            if name != ours:
                both = sorted(mine.keys() & rounds.keys())
                ratios = tuple(better_by(metric, mine[i], rounds[i]) for i in both)
            cells[name] = Cell(statistics.median(rounds.values()), ratios)
        failed = {
            name: error for name, error in errors.get(workload, {}).items() if name not in cells
        }
        table.append(Line(workload, metric, cells, failed))
    found = {line.workload for line in table}
    table += [Line(name, "", {}, failed) for name, failed in errors.items() if name not in found]
    return table
