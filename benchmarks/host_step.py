# SPDX-License-Identifier: Apache-2.0
"""What the worker itself spends on a decode step, part by part, with programs that return at once.

    python benchmarks/host_step.py --model CHECKPOINT

Everything between vLLM's scheduler and its output processing counts, minus the program. Time is
given by the clock and by the thread's own processor time, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trnport.core.metadata import ModelOutput

STEPS = 100
BATCHES = (1, 8, 32)
PARTS = ("translate", "inputs", "call", "sample", "output", "rest")

ZERO = (0.0, 0.0)

Times = dict[str, tuple[float, float]]
"""Part of a step to its wall and thread seconds."""


class Parts:
    """Time of each part of a step, without the parts inside of it."""

    def __init__(self) -> None:
        self.steps: list[Times] = []
        self._now: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._inner: list[list[float]] = []
        self._wrapped: list[tuple[Any, str, Any]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what is inside for ``name``."""
        self._inner.append([0.0, 0.0])
        wall, thread = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            spent = (time.perf_counter() - wall, time.thread_time() - thread)
            inner = self._inner.pop()
            for clock in (0, 1):
                self._now[name][clock] += spent[clock] - inner[clock]
                if self._inner:
                    self._inner[-1][clock] += spent[clock]

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        """Let a function count for ``name`` from now on."""
        function = getattr(owner, attribute)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        self._wrapped.append((owner, attribute, function))
        setattr(owner, attribute, timed)

    def unwrap(self) -> None:
        """Take the clocks out again: some are in classes, which the next engine shares."""
        for owner, attribute, function in reversed(self._wrapped):
            setattr(owner, attribute, function)

    def end_step(self, keep: bool) -> None:
        """A step is over."""
        if keep:
            self.steps.append({name: (wall, thread) for name, (wall, thread) in self._now.items()})
        self._now.clear()


def open_engine(model: str, on_device: bool) -> Any:
    """An engine in this process, with a decode program for each batch size."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM

    neuron: dict[str, Any] = {"num_seqs_buckets": list(BATCHES), "compiler": "eager"}
    if on_device:
        neuron["on_device_sampling_config"] = {}
    return LLM(
        model,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=BATCHES[-1],
        max_num_batched_tokens=128,
        kv_cache_memory_bytes=512 << 20,
        generation_config="vllm",
        max_logprobs=0 if on_device else 20,
        async_scheduling=False,
        additional_config={"neuron_config": neuron},
    )


def worker_of(engine: Any) -> Any:
    """The worker of an engine in this process."""
    return engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def quick_function(on_device: bool, vocab_size: int) -> Callable[..., ModelOutput]:
    """A program that has its results ready."""
    logits = torch.randn(BATCHES[-1], vocab_size).to(torch.bfloat16)
    tokens = torch.full((BATCHES[-1],), 5)

    def program(**inputs: Any) -> ModelOutput:
        rows = inputs["sampling_positions"].shape[0]
        if on_device:
            return ModelOutput(token_ids=tokens[:rows])
        return ModelOutput(logits=logits[:rows])

    return program


def replace_programs(programs: dict[str, Any], function: Callable[..., ModelOutput]) -> None:
    """Let programs check their calls as ever, and then return at once."""
    for name, program in list(programs.items()):
        programs[name] = type(program)(program.name, function, program.signature)


def instrument(worker: Any, parts: Parts) -> None:
    """Time the parts of a worker's steps."""
    from trnport.adapters.vllm import steps

    runner, executor = worker._steps, worker._executor
    parts.wrap(steps, "apply_schedule", "translate")
    parts.wrap(steps, "build_output", "output")
    parts.wrap(type(executor._inputs), "decode", "inputs")
    if executor._sampling is not None:
        parts.wrap(type(executor._sampling), "add", "inputs")
    parts.wrap(executor._programs, "call", "call")
    parts.wrap(runner._chooser, "choose", "sample")
    parts.wrap(runner, "_choose", "output")
    execute, sample = worker.execute_model, worker.sample_tokens

    def execute_model(schedule: Any) -> Any:
        worker.is_decode = bool(schedule.num_scheduled_tokens) and not schedule.scheduled_new_reqs
        worker.batch = len(schedule.num_scheduled_tokens)
        with parts.part("rest"):
            return execute(schedule)

    def sample_tokens(grammar: Any) -> Any:
        with parts.part("rest"):
            output = sample(grammar)
        parts.end_step(keep=worker.is_decode and worker.batch == worker.expected)
        return output

    worker.execute_model, worker.sample_tokens = execute_model, sample_tokens


def measure(engine: Any, parts: Parts, batch: int, **params: Any) -> list[Times]:
    """The decode steps of ``batch`` requests."""
    from vllm import SamplingParams

    parts.steps = []
    worker_of(engine).expected = batch
    wanted = SamplingParams(max_tokens=STEPS, ignore_eos=True, detokenize=False, **params)
    prompts = [{"prompt_token_ids": [3 + row, 4, 5]} for row in range(batch)]
    engine.generate(prompts, wanted, use_tqdm=False)
    return parts.steps


def report(label: str, batch: int, steps: list[Times]) -> None:
    """Print medians over steps as a row of a Markdown table."""

    def cell(names: tuple[str, ...]) -> str:
        wall, thread = (
            statistics.median(
                sum(step.get(name, (0.0, 0.0))[clock] for name in names) for step in steps
            )
            for clock in (0, 1)
        )
        return f"{wall * 1e3:.3f} / {thread * 1e3:.3f}"

    cells = [cell((name,)) for name in PARTS]
    print(f"| {label} | {batch} | {' | '.join(cells)} | **{cell(PARTS)}** |")


def main() -> None:
    """Print one row for each kind of sampling and batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--kind", choices=["host", "device"], action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| sampling | batch | {' | '.join(PARTS)} | total ms, wall / thread |")
    print("|---" * (len(PARTS) + 3) + "|")
    for kind in arguments.kind or ("host", "device"):
        engine = open_engine(arguments.model, kind == "device")
        worker, parts = worker_of(engine), Parts()
        function = quick_function(kind == "device", worker.model_config.get_vocab_size())
        replace_programs(worker._executor._programs._programs, function)
        instrument(worker, parts)
        measure(engine, parts, BATCHES[-1], temperature=0)
        for sampling, params in (("greedy", {"temperature": 0}), ("random", {"temperature": 1})):
            for batch in BATCHES:
                report(f"{kind}, {sampling}", batch, measure(engine, parts, batch, **params))
        parts.unwrap()
        engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
