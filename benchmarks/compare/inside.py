# SPDX-License-Identifier: Apache-2.0
"""Decode, prefill and prefixes: each engine stays loaded, and takes its turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from benchmarks.compare.child import EngineError, Runner
from benchmarks.compare.engines import MEMORY, Engine, Settings, Shape
from benchmarks.compare.fleet import Fleet, say
from benchmarks.compare.order import turns
from benchmarks.compare.results import Results
from benchmarks.compare.workloads import BANDWIDTH, Workload


def measure(
    engines: Sequence[Engine],
    workloads: Sequence[Workload],
    settings: Settings,
    shape: Shape,
    rounds: int,
    timeout: float,
    results: Results,
) -> None:
    """Run every workload on every engine, round by round, except what the results have already.

    A workload that failed twice on an engine is not tried on it again.
    """
    by_name = {engine.name: engine for engine in engines}
    failures: dict[tuple[str, str], int] = {}
    # New prompts in each run, as no engine may find an earlier one in its prefix cache, and the
    # same for all engines.
    seed = str(time.time())

    def opened(name: str, runner: Runner) -> None:
        results.describe(f"about {name}", runner.about)

    openers = {
        name: (lambda engine=engine: engine.open(settings, shape))
        for name, engine in by_name.items()
    }
    with Fleet(openers, opened) as fleet:
        for number, workload, name in turns(rounds, workloads, list(by_name)):
            pair = (name, workload.name)
            if results.has(workload.name, name, number) or failures.get(pair, 0) >= 2:
                continue

            def work(runner: Runner, workload=workload, seed=f"{seed} {number}"):
                if workload.name not in runner.warm:
                    _run(runner, workload, f"warm-up {seed}", settings.start_timeout)
                    runner.warm.add(workload.name)
                return _round(runner, workload, seed, timeout)

            try:
                values = fleet.turn(name, work)
            except EngineError as error:
                failures[pair] = failures.get(pair, 0) + 1
                results.add(workload.name, name, number, {}, str(error))
                say(f"round {number} {workload.name} {name}: FAILED: {error}")
                continue
            results.add(workload.name, name, number, values)
            say(f"round {number} {workload.name} {name}: {shown(values)}")


def bandwidth(settings: Settings, shape: Shape, timeout: float, results: Results) -> None:
    """How fast memory can be read at all."""
    measure([MEMORY], [BANDWIDTH], settings, shape, 1, timeout, results)


def _round(runner: Runner, workload: Workload, seed: str, timeout: float) -> dict[str, float]:
    runs = [
        _run(runner, workload, f"{seed} {repeat}", timeout) for repeat in range(workload.repeats)
    ]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _run(runner: Runner, workload: Workload, seed: str, timeout: float) -> dict[str, float]:
    trace = runner.generate(workload.prompts(seed), workload.new_tokens, timeout)
    return workload.values(trace)


def shown(values: Mapping[str, float]) -> str:
    """Short, for the log."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
