# SPDX-License-Identifier: Apache-2.0
"""Measure ours and the peers in turns; print and publish one table.

The first run installs the peers into ~/.cache/trnport/peers. Results are appended as they come;
--resume goes on after an interruption. Without it, what is selected is measured again, and other
results of the same settings are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.compare import inside, report, serving, starts, workloads
from benchmarks.compare.engines import ENGINES, QUICK, SERVER, START, WORKLOADS, Settings
from benchmarks.compare.fleet import say
from benchmarks.compare.peers import LLAMA_CPP
from benchmarks.compare.results import Results, Row
from trnport.adapters.cli.demo_model import SMOLLM2

ROOT = Path(__file__).resolve().parents[2]
QUICK_PAGE = ROOT / "build" / "bench-peers" / "performance.md"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [engine.name for engine in ENGINES]
    parser.add_argument("--model", required=True, help="folder of the checkpoint")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, default=3, help="at most 2 of servers and starts")
    parser.add_argument(
        "--ours",
        type=json.loads,
        default={"compiler": "inductor", "kernels": "native"},
        metavar="JSON",
        help="keys of our neuron_config beside the buckets (default: inductor, native kernels)",
    )
    parser.add_argument("--engines", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument(
        "--workloads",
        nargs="+",
        metavar="PREFIX",
        help="such as decode, prefill-1024, shared, serve-inf, start, bandwidth",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, other file")
    parser.add_argument("--resume", action="store_true", help="measure only what is missing")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds, of a single run")
    parser.add_argument("--start-timeout", type=float, default=900.0, help="seconds, of a start")
    parser.add_argument("--page", type=Path, help="Markdown file (default: docs/performance.md)")
    return parser.parse_args(arguments)


def machine() -> str:
    """Processor and cores."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def described(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that make results comparable."""
    return {
        "model": Path(arguments.model).name,
        "dtype": arguments.dtype,
        "threads": arguments.threads,
        "neuron_config": json.dumps(arguments.ours, sort_keys=True),
        "quick": arguments.quick,
        "weight_bytes": sum(x.stat().st_size for x in Path(arguments.model).glob("*.safetensors")),
        "machine": machine(),
    }


def main(argv: list[str]) -> int:
    arguments = parse(argv)
    page = arguments.page or (QUICK_PAGE if arguments.quick else ROOT / "docs/performance.md")
    results = Results(page.with_suffix(".csv"))
    inner = workloads.choose(
        workloads.QUICK if arguments.quick else workloads.FULL, arguments.workloads
    )
    loads = [
        load
        for load in (serving.QUICK if arguments.quick else serving.FULL)
        if chosen(load.name, arguments)
    ]
    if not arguments.report:
        measure(arguments, results, inner, loads)
    print(report.publish(results, titles(arguments.quick), page))
    say(f"\nwritten: {page}, {results.path}, pictures in {page.with_suffix('')}")
    return 0


def titles(quick: bool) -> dict[str, str]:
    """Titles of all workloads by name."""
    inner = (*(workloads.QUICK if quick else workloads.FULL), workloads.BANDWIDTH)
    loads = serving.QUICK if quick else serving.FULL
    return {
        **{workload.name: workload.title for workload in inner},
        **{load.name: f"vllm serve, {load.title}" for load in loads},
        **dict.fromkeys((starts.COLD, starts.WARM, starts.SERVED), "start"),
    }


def stop(*_: object) -> None:
    """End as an exception, so that the engines are ended, too; once, since that takes a while."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def chosen(name: str, arguments: argparse.Namespace) -> bool:
    return arguments.workloads is None or name.startswith(tuple(arguments.workloads))


def measure(
    arguments: argparse.Namespace,
    results: Results,
    inner: list[workloads.Workload],
    loads: list[serving.Load],
) -> None:
    """Measure what is selected."""
    engines = [engine for engine in ENGINES if engine.name in arguments.engines]
    if Path(arguments.model).name != SMOLLM2.name:
        say("llama.cpp is left out: there is a GGUF file of the demo model only")
        engines = [engine for engine in engines if engine.environment is not LLAMA_CPP]

    def again(row: Row) -> bool:
        return not arguments.resume and (
            chosen(row.workload, arguments) and row.engine in {*arguments.engines, "machine"}
        )

    if not results.begin(described(arguments), again):
        say("the settings are new: earlier results are dropped")
    settings = Settings(
        arguments.model,
        arguments.dtype,
        arguments.threads,
        arguments.ours,
        arguments.start_timeout,
    )
    rounds = 1 if arguments.quick else arguments.rounds
    few = min(rounds, 2)  # starts and clients take longest
    began = time.monotonic()

    def part(name: str) -> None:
        say(f"--- {name}, {(time.monotonic() - began) / 60:.1f} min since the beginning")

    if chosen("bandwidth", arguments):
        part("memory bandwidth")
        inside.bandwidth(settings, QUICK, arguments.timeout, results)
    if inner:
        part("inside each engine")
        shape = QUICK if arguments.quick else WORKLOADS
        inside.measure(engines, inner, settings, shape, rounds, arguments.timeout, results)
    if loads:
        part("vllm serve")
        serving.measure(engines, loads, settings, SERVER, few, arguments.timeout, results)
    if chosen(starts.COLD, arguments) or chosen(starts.WARM, arguments):
        part("starts")
        load = workloads.QUICK[1] if arguments.quick else workloads.FULL[1]
        starts.measure(engines, load, settings, START, few, arguments.timeout, results)
    if chosen(starts.SERVED, arguments):
        part("starts of servers")
        starts.measure_servers(engines, settings, START, few, results)
    part("done")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main(sys.argv[1:]))
