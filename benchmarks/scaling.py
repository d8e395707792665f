# SPDX-License-Identifier: Apache-2.0
"""What a decode step costs against batch, context and number of programs, and the host's part.

    python -m benchmarks.scaling --model CHECKPOINT

A step is the core's: inputs, program, rows of the result. The host's part is measured with a
stand-in that returns the program's last result at once: in the core alone, and in vLLM, where
scheduling, sampling, bookkeeping and output handling come on top. Programs are counted in
processes of their own, since memory once used stays.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096)
EXTRA_BUCKETS = (0, 2, 6)
CONTEXT_OF_BATCHES = 256
BATCH_OF_CONTEXTS = 8
BLOCK_SIZE = 32
BYTES_PER_MIB = 2**20


class Point(NamedTuple):
    """A number with its spread over the rounds.

    ``sweep`` names the series, ``x`` the size, ``value`` is the median.
    """

    sweep: str
    x: int
    value: float
    low: float
    high: float


def spread(sweep: str, x: int, values: Sequence[float]) -> Point:
    return Point(sweep, x, statistics.median(values), min(values), max(values))


# --- one step of the core -----------------------------------------------------------------------


def open_session(arguments: argparse.Namespace, contexts: list[int], warmup: str) -> Any:
    """A session with a decode program for every batch and context in use."""
    import torch

    from trnport import bootstrap

    torch.set_num_threads(arguments.threads)
    return bootstrap.open_session(
        arguments.model,
        dtype=getattr(torch, arguments.dtype),
        max_model_len=CONTEXTS[-1],
        max_num_seqs=BATCHES[-1],
        max_num_batched_tokens=128,
        num_blocks=1 + BATCH_OF_CONTEXTS * CONTEXTS[-1] // BLOCK_SIZE,
        neuron_config={
            "num_batched_tokens_buckets": [128],
            "num_seqs_buckets": list(BATCHES) if warmup == "lazy" else [8, 32],
            "decode_context_length_buckets": contexts,
            "warmup": warmup,
            "on_device_sampling_config": {"all_greedy": True},
            **arguments.ours,
        },
    )


def decode_step(session: Any, batch: int, context: int) -> Callable[[], Any]:
    """A function that runs the same step each time: the last token of each of ``batch`` rows."""
    from trnport.core.engine.batch import BatchState, Request

    blocks = -(-context // BLOCK_SIZE)
    state = BatchState()
    for row in range(batch):
        request = Request(f"row-{row}", [100 + row] * context, 1)
        request.block_ids = list(range(1 + row * blocks, 1 + (row + 1) * blocks))
        state.add(request)

    def run() -> Any:
        for request in state:
            request.num_computed_tokens = context - 1
        return session._executor.execute(state, {request.request_id: 1 for request in state})

    return run


def without_programs(session: Any, step: Callable[[], Any]) -> Callable[[], Any]:
    """The same step, whose programs return at once what they returned the last time."""
    step()  # compiles its program, if there is none yet
    programs = session._executor._programs._programs
    real = dict(programs)
    recorded: dict[str, Any] = {}

    def record(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            recorded[name] = real[name](*args, **kwargs)
            return recorded[name]

        return call

    programs.update({name: record(name) for name in real})
    step()
    programs.update(real)
    stand_ins = {
        name: (lambda *args, output=output, **kwargs: output) for name, output in recorded.items()
    }

    def run() -> Any:
        programs.update(stand_ins)
        try:
            return step()
        finally:
            programs.update(real)

    return run


def milliseconds(step: Callable[[], Any], times: int) -> float:
    """Mean time of a step."""
    started = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - started) / times * 1e3


def rounds_of(
    steps: dict[tuple[str, int], tuple[Callable[[], Any], int]], rounds: int
) -> Iterator[Point]:
    """Measure all steps in turns, round by round; each is given with its number of runs."""
    for step, _ in steps.values():
        step()
    values: dict[tuple[str, int], list[float]] = {key: [] for key in steps}
    for _ in range(rounds):
        for key, (step, times) in steps.items():
            values[key].append(milliseconds(step, times))
    return (spread(*key, found) for key, found in values.items())


def sweep_sizes(arguments: argparse.Namespace) -> list[Point]:
    """Batch and context, and the core's own part of the former."""
    session = open_session(arguments, list(CONTEXTS[1:-1]), "lazy")
    steps: dict[tuple[str, int], tuple[Callable[[], Any], int]] = {}
    for batch in BATCHES:
        step = decode_step(session, batch, CONTEXT_OF_BATCHES)
        steps["step, by batch", batch] = step, arguments.steps
        steps["core without program, by batch", batch] = without_programs(session, step), 50
    for context in CONTEXTS:
        step = decode_step(session, BATCH_OF_CONTEXTS, context)
        steps["step, by context", context] = step, arguments.steps
    return list(rounds_of(steps, arguments.rounds))


def sweep_programs(arguments: argparse.Namespace, extra: int) -> list[Point]:
    """The same step among more and more programs, all of them compiled and run at start."""
    between = [256 + 128 * (i + 1) for i in range(extra)]
    session = open_session(arguments, [256, *between], "eager")
    count = len(session._executor.program_names)
    resident = resident_mib()
    steps = {("step, by programs", count): (decode_step(session, 8, 256), arguments.steps)}
    return [
        *rounds_of(steps, arguments.rounds),
        Point("memory, by programs", count, resident, resident, resident),
    ]


def resident_mib() -> float:
    """Resident size of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / BYTES_PER_MIB


# --- vLLM around it -----------------------------------------------------------------------------


def sweep_vllm(arguments: argparse.Namespace) -> list[Point]:
    """A step of an engine in this process whose programs return at once."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from benchmarks.compare.runners.vllm_llm import VllmEngine
    from benchmarks.host_gap import replace_programs

    limits = {"max_model_len": 128, "max_num_seqs": BATCHES[-1], "max_num_batched_tokens": 128}
    config = {
        "num_seqs_buckets": list(BATCHES),
        "on_device_sampling_config": {"all_greedy": True},
    }
    engine = VllmEngine(
        {
            "model": arguments.model,
            "arguments": {
                **limits,
                "dtype": "float32",
                "kv_cache_memory_bytes": 128 << 20,
                "max_logprobs": 0,
                "additional_config": {"neuron_config": config},
            },
        }
    )
    replace_programs(SimpleNamespace(llm_engine=engine._engine), 0.0)
    values: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    for _ in range(arguments.rounds + 1):
        for batch, found in values.items():
            trace = engine.generate([[3 + row, 4, 5] for row in range(batch)], 64)
            steps = (trace["tokens"] - trace["tokens_at_first"]) / batch
            found.append((trace["end"] - trace["first"]) / steps * 1e3)
    return [spread("vLLM without program, by batch", x, y[1:]) for x, y in values.items()]


def apart(function: Callable[..., list[Point]], *arguments: Any) -> list[Point]:
    """Call a function in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    """Measure, print a Markdown table, write CSV, picture and section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="in a round, of each size")
    parser.add_argument("--ours", type=json.loads, default={"compiler": "inductor"}, metavar="JSON")
    parser.add_argument("--page", type=Path, default=Path("docs/performance.md"))
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    points: list[Point] = []
    for function, *more in (
        (sweep_sizes,),
        (sweep_vllm,),
        *((sweep_programs, extra) for extra in EXTRA_BUCKETS),
    ):
        print(f"{function.__name__} {more}", file=sys.stderr, flush=True)
        try:
            points += apart(function, arguments, *more)
        except Exception as error:  # noqa: BLE001  # a sweep that dies must not lose the others
            print(f"{function.__name__} {more} FAILED: {error}", file=sys.stderr, flush=True)
    from benchmarks.scaling_report import publish

    print(publish(points, vars(arguments), arguments.page))


if __name__ == "__main__":
    main()
