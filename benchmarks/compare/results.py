# SPDX-License-Identifier: Apache-2.0
"""Measurements as they come: a CSV file that an interrupted run leaves complete up to there."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One number of one engine in one round, or the error in its place.

    Attributes:
        measured_at: UTC, to the second.
        workload: Name of a workload.
        engine: Name of an engine.
        round: From 0.
        metric: Name of a metric; empty where ``error`` is not.
        value: In the unit of the metric; 0 with an error.
        error: Why there is no value.
    """

    measured_at: str
    workload: str
    engine: str
    round: int
    metric: str
    value: float
    error: str = ""


class Results:
    """Rows on disk, and next to them, as JSON, what they were measured with."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings_path = path.with_suffix(".json")
        self.rows = read_rows(path)
        self.settings = _read_json(self.settings_path)

    def begin(self, settings: Mapping[str, Any], drop: Callable[[Row], bool]) -> bool:
        """Keep the rows measured with the same settings, less those to be measured again.

        Returns:
            Whether the settings are the same as before; otherwise no row is kept, and the old
            file gets the suffix ``.old``.
        """
        same = self.settings.get("settings", dict(settings)) == dict(settings)
        self.rows = [row for row in self.rows if same and not drop(row)]
        if not same:
            self.settings = {}
            if self.path.exists():
                self.path.replace(self.path.with_suffix(".csv.old"))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Row)])
            writer.writeheader()
            writer.writerows(map(asdict, self.rows))
        self.describe("settings", dict(settings))
        return same

    def describe(self, key: str, value: Any) -> None:
        """Note something about the measurements."""
        self.settings[key] = value
        self.settings_path.write_text(json.dumps(self.settings, indent=2, sort_keys=True) + "\n")

    def has(self, workload: str, engine: str, number: int) -> bool:
        """Whether there is a value of that engine in that round."""
        return any(
            (row.workload, row.engine, row.round) == (workload, engine, number) and not row.error
            for row in self.rows
        )

    def add(
        self,
        workload: str,
        engine: str,
        number: int,
        values: Mapping[str, float],
        error: str = "",
    ) -> None:
        """Append the numbers of one run, or why there are none."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        new = [Row(now, workload, engine, number, name, value) for name, value in values.items()]
        if error:
            new.append(Row(now, workload, engine, number, "", 0.0, " ".join(error.split())))
        self.rows += new
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Row)])
            writer.writerows({**asdict(row), "value": f"{row.value:.6g}"} for row in new)


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file; none where there is no file. A line cut short is left out."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(_parsed(csv.DictReader(file)))


def _parsed(lines: Iterable[Mapping[str, str | None]]) -> Iterable[Row]:
    for line in lines:
        values = {field.name: line.get(field.name) for field in fields(Row)}
        if None in values.values():
            continue
        try:
            yield Row(**{**values, "round": int(values["round"]), "value": float(values["value"])})
        except ValueError:
            continue


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}
