# SPDX-License-Identifier: Apache-2.0
"""Start-up with empty and with filled caches, and peak memory: a new process every time."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare.child import EngineError, Runner
from benchmarks.compare.engines import Engine, Settings, Shape
from benchmarks.compare.fleet import say
from benchmarks.compare.inside import shown
from benchmarks.compare.order import turns
from benchmarks.compare.peers import InstallError, cache_root
from benchmarks.compare.results import Results
from benchmarks.compare.serving import Server
from benchmarks.compare.workloads import Workload

COLD, WARM, SERVED = "start-cold", "start-warm", "start-serve"
VARIABLES = (
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
    "TRNPORT_CACHE_DIR",
    "VLLM_CACHE_ROOT",
)
"""Where engines keep what they have compiled."""


def measure(
    engines: Sequence[Engine],
    load: Workload,
    settings: Settings,
    shape: Shape,
    rounds: int,
    timeout: float,
    results: Results,
) -> None:
    """Start every engine once with empty caches and ``rounds`` times with those of that start.

    The memory is that of a warm start, after it has run ``load``.
    """
    by_name = {engine.name: engine for engine in engines}
    broken: set[str] = set()
    for turn, _, name in turns(rounds + 1, [load], list(by_name)):
        kind, number = (COLD, 0) if turn == 0 else (WARM, turn - 1)
        if name in broken or results.has(kind, name, number):
            continue
        caches = Caches(cache_root() / "start-caches" / name)
        if kind == COLD:
            caches.empty()
        try:
            values = _start(by_name[name], kind, load, settings, shape, caches, timeout)
        except (EngineError, InstallError, OSError) as error:
            broken.add(name)
            results.add(kind, name, number, {}, str(error))
            say(f"round {number} {kind} {name}: FAILED: {error}")
            continue
        results.add(kind, name, number, values)
        say(f"round {number} {kind} {name}: {shown(values)}")


def measure_servers(
    engines: Sequence[Engine], settings: Settings, shape: Shape, rounds: int, results: Results
) -> None:
    """Start the server of every engine that has one until it is healthy, with filled caches.

    Caches are those of :func:`measure`. A first start, which is not measured, adds what they
    lack.
    """
    servers = {engine.name: engine for engine in engines if engine.serves}
    broken: set[str] = set()
    for turn, _, name in turns(rounds + 1, [SERVED], list(servers)):
        missing = [number for number in range(rounds) if not results.has(SERVED, name, number)]
        number = turn - 1
        if name in broken or not missing or (turn and number not in missing):
            continue
        try:
            seconds = _serve(servers[name], settings, shape)
        except (EngineError, InstallError, OSError) as error:
            broken.add(name)
            results.add(SERVED, name, max(number, 0), {}, str(error))
            say(f"round {number} {SERVED} {name}: FAILED: {error}")
            continue
        values = {"healthy": seconds}
        if turn:
            results.add(SERVED, name, number, values)
        say(f"{f'round {number}' if turn else 'not measured:'} {SERVED} {name}: {shown(values)}")


def _serve(engine: Engine, settings: Settings, shape: Shape) -> float:
    engine.python()
    caches = Caches(cache_root() / "start-caches" / engine.name)
    with contextlib.closing(Server(engine, settings, shape, caches.variables())) as server:
        return server.start_seconds


def _start(
    engine: Engine,
    kind: str,
    load: Workload,
    settings: Settings,
    shape: Shape,
    caches: Caches,
    timeout: float,
) -> dict[str, float]:
    engine.python()  # an installation is no part of a start
    with contextlib.closing(engine.open(settings, shape, caches.variables())) as runner:
        if kind == COLD:
            return {"cold": runner.start_seconds}
        return {"warm": runner.start_seconds, "memory": _memory(runner, load, timeout)}


def _memory(runner: Runner, load: Workload, timeout: float) -> float:
    runner.generate(load.prompts("memory"), load.new_tokens, timeout)
    return runner.processes.peak_bytes() / 2**20


class Caches:
    """Folders of compiled programs for one engine, apart from the user's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def empty(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def variables(self) -> dict[str, str]:
        """The environment variables that name them; the folders exist."""
        named = {name: self._folder / name.lower() for name in VARIABLES}
        for folder in named.values():
            folder.mkdir(parents=True, exist_ok=True)
        return {name: str(folder) for name, folder in named.items()}
