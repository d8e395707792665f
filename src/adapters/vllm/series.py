# SPDX-License-Identifier: Apache-2.0
"""One worker's metric values, in files that other processes read."""

from __future__ import annotations

import os
import time
import uuid
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import attrs
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.utils import floatToGoString

Kind = Literal["counter", "gauge", "histogram"]

BOUNDS = (0.0, *(float(2**i) for i in range(15)), float("inf"))
"""Upper bounds of a histogram's buckets: padding is 0, or up to a program's size."""

# How prometheus_client finds a file's meaning. Labels tell workers apart, so that no two files
# have the same gauge, but after a restart in one process the newer value is the right one.
_FILE_PREFIXES = {"counter": "counter", "gauge": "gauge_mostrecent", "histogram": "histogram"}


@attrs.frozen
class Metric:
    """What a series means.

    Attributes:
        name: Name without our prefix.
        kind: Prometheus type.
        meaning: One sentence, shown by /metrics and in the README.
        labels: Labels beside those that every series of a worker has.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Name with prefix."""
        return f"trnport:{self.name}"


class SeriesFiles:
    """Writes values where prometheus_client's multiprocess collector reads them.

    prometheus_client decides for a whole process whether its metrics live in memory or in
    files. A worker may share its process with vLLM's HTTP server, whose metrics must stay where
    they are; so this writes the files itself.
    """

    def __init__(self, folder: Path, labels: Mapping[str, str]) -> None:
        """Nothing is created before the first value.

        Args:
            folder: Where the files go.
            labels: Labels of every series.
        """
        self._folder = folder
        self._labels = dict(labels)
        # Not the plain process id: vLLM may keep files of the same process in the folder.
        self._owner = f"trnport-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._files: dict[str, MmapedDict] = {}
        self._keys: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        self._values: dict[str, float] = {}

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Increase a counter; 0 makes it exist."""
        (key,) = self._keys_of(metric, labels)
        self._write(metric, key, self._values.get(key, 0.0) + amount)

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge."""
        (key,) = self._keys_of(metric, labels)
        self._write(metric, key, value, time.time())

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Count a value in a histogram."""
        keys = self._keys_of(metric, labels)
        for key, amount in ((keys[bisect_left(BOUNDS, value)], 1.0), (keys[-1], value)):
            self._write(metric, key, self._values[key] + amount)

    def touch(self, metric: Metric, *labels: str) -> None:
        """Make a counter or histogram exist before anything is counted."""
        for key in self._keys_of(metric, labels):
            self._write(metric, key, self._values.get(key, 0.0))

    def close(self, *, remove: bool) -> None:
        """Close the files.

        Args:
            remove: Whether the series end with the worker.
        """
        for prefix, file in self._files.items():
            file.close()
            if remove:
                self._path(prefix).unlink(missing_ok=True)
        self._files.clear()

    def _write(self, metric: Metric, key: str, value: float, timestamp: float = 0.0) -> None:
        self._values[key] = value
        prefix = _FILE_PREFIXES[metric.kind]
        if prefix not in self._files:
            self._files[prefix] = MmapedDict(str(self._path(prefix)))
        self._files[prefix].write_value(key, value, timestamp)

    def _path(self, prefix: str) -> Path:
        return self._folder / f"{prefix}_{self._owner}.db"

    def _keys_of(self, metric: Metric, labels: tuple[str, ...]) -> list[str]:
        """The keys of a counter or gauge: one; of a histogram: each bound, then the sum."""
        if (metric.name, labels) not in self._keys:
            named = self._labels | dict(zip(metric.labels, labels, strict=True))
            self._keys[metric.name, labels] = _new_keys(metric, named)
            if metric.kind == "histogram":
                for key in self._keys[metric.name, labels]:
                    self._write(metric, key, 0.0)
        return self._keys[metric.name, labels]


def _new_keys(metric: Metric, labels: dict[str, str]) -> list[str]:
    def key(suffix: str, **more: str) -> str:
        named = labels | more
        sample = metric.full_name + suffix
        return str(
            mmap_key(metric.full_name, sample, list(named), list(named.values()), metric.meaning)
        )

    if metric.kind == "histogram":
        bounds = [key("_bucket", le=floatToGoString(bound)) for bound in BOUNDS]
        return [*bounds, key("_sum")]
    return [key("_total" if metric.kind == "counter" else "")]
