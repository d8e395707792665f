# SPDX-License-Identifier: Apache-2.0
"""Where the time of a start went, from the first process of a server to its last program."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from trnport.adapters.vllm.start_method import is_server
from trnport.core.ports.compiler import Origins

log = structlog.get_logger(__name__)

_NOTE = "_trnport_started"


def remember_start(parallel_config: Any) -> None:
    """Note in a configuration, which travels to the workers, when all this began.

    A server begins with its process, an engine in a script with its configuration. Times are
    ``time.monotonic()``, which all processes of a machine share.

    Args:
        parallel_config: A ``vllm.config.ParallelConfig``.
    """
    if not hasattr(parallel_config, _NOTE):
        now = time.monotonic()
        setattr(parallel_config, _NOTE, (process_start() if is_server() else now, now))


def process_start() -> float:
    """When this process was made, as ``time.monotonic()`` would have said; now if unknown."""
    now = time.monotonic()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return now - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, IndexError, ValueError):
        return now


class WarmUpLog:
    """Logs which program the server is waiting for, and what the one before took."""

    def __init__(self) -> None:
        self._before = 0.0

    def __call__(self, done: int, total: int, name: str, elapsed: float) -> None:
        """Log a line.

        Args:
            done: Programs that have run.
            total: Programs in all.
            name: The program that comes next.
            elapsed: Seconds since warm-up began.
        """
        if done == total:
            log.info("warm-up done", programs=total, seconds=round(elapsed, 1))
            return
        last = {"last_one": round(elapsed - self._before, 1)} if done else {}
        self._before = elapsed
        log.info("warm-up", program=name, number=done + 1, of=total, **last)


class StartUp:
    """Collects what a worker's start consists of.

    Args:
        parallel_config: A ``vllm.config.ParallelConfig`` with the note of its first process.
    """

    def __init__(self, parallel_config: Any) -> None:
        now = time.monotonic()
        note: tuple[float, float] = getattr(parallel_config, _NOTE, (now, now))
        self._began, configured = note
        self._phases = {"imports": configured - self._began, "engine_process": now - configured}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around a part of the start."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._phases[name] = time.monotonic() - started

    def log(self, origins: Origins) -> None:
        """Log the seconds of each phase.

        Args:
            origins: Where the programs came from; what is left of "warm_up" are their runs.
        """
        seconds = time.monotonic() - self._began
        phases = dict(self._phases)
        warm_up = phases.pop("warm_up", 0.0)
        phases |= {"programs": origins.seconds, "warm_up": warm_up - origins.seconds}
        phases["other"] = seconds - sum(phases.values())
        log.info(
            "started",
            seconds=round(seconds, 1),
            **{name: round(value, 1) for name, value in phases.items()},
            programs_from_cache=origins.cached,
            programs_compiled=origins.compiled,
        )
