# SPDX-License-Identifier: Apache-2.0
"""How long a running stream pauses while somebody else's long prompt arrives.

    python benchmarks/decode_stall.py --model CHECKPOINT --prompt 8000

One request streams tokens; a long prompt arrives. With the whole prompt in one step, which is
what an engine that runs one prefill at a time does, the stream pauses for all of it. In chunks,
it gets a token with every chunk. The pause is the largest gap between two tokens of the stream
from the arrival until the long prompt's own first token.

Each way has a process of its own; they take turns, so that a busy minute of the machine hits all
of them alike. Gaps are in CPU seconds of the process, with one thread, which other processes
change less than they change the clock; the clock's gap is printed beside it.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

TOKENS_BEFORE = 8
STREAM_PROMPT = 16


class Measured(NamedTuple):
    """One arrival, in seconds of CPU where nothing else is said."""

    usual: float  # median gap without the long prompt
    pause: float  # largest gap with it
    clock: float  # the same by the clock
    wait: float  # until the long prompt's first token
    tokens: int  # that the stream got meanwhile


class Now(NamedTuple):
    """A moment."""

    cpu: float
    clock: float


def now() -> Now:
    return Now(time.process_time(), time.perf_counter())


def open_engine(arguments: argparse.Namespace, budget: int, max_len: int) -> Any:
    """A vLLM engine inside this process whose steps hold at most ``budget`` tokens."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # it would log among our results
    from vllm import LLM

    from trnport.core.engine.executor import StepExecutor

    if not arguments.warm_up:
        # Eager programs need none, and a program for a whole prompt runs for minutes.
        StepExecutor.warm_up = lambda self, progress=None: None  # type: ignore[method-assign]
    # The stream stays below 256, so decoding costs the same either way; a whole prompt needs no
    # more, and fewer programs of its size warm up sooner.
    contexts = [256] if budget > max_len else [256, 1024, 4096]
    return LLM(
        arguments.model,
        dtype=arguments.dtype,
        max_model_len=max_len,
        max_num_seqs=2,
        max_num_batched_tokens=budget,
        kv_cache_memory_bytes=arguments.cache_mib << 20,
        generation_config="vllm",
        enable_prefix_caching=False,
        additional_config={
            "neuron_config": {
                "num_batched_tokens_buckets": [min(budget, max_len)],
                "num_seqs_buckets": [2],
                "decode_context_length_buckets": [size for size in contexts if size < max_len],
            }
        },
    )


def measure(engine: Any, prompt: list[int], stream_prompt: list[int], most: int) -> Measured:
    """Start a stream, let the prompt arrive, and time the stream's tokens."""
    from vllm import SamplingParams

    core = engine.llm_engine
    stream = SamplingParams(temperature=0, ignore_eos=True, max_tokens=most)
    core.add_request("stream", {"prompt_token_ids": stream_prompt}, stream)
    times: list[Now] = []
    arrived = first = None
    while first is None:
        outputs = {output.request_id: output for output in core.step()}
        moment = now()
        if "stream" in outputs:
            times.append(moment)
            if outputs["stream"].finished and "long" not in outputs:
                raise RuntimeError("the stream ended before the prompt's first token")
        if "long" in outputs:
            first = moment
        if len(times) == TOKENS_BEFORE and arrived is None:
            arrived = now()
            once = SamplingParams(temperature=0, ignore_eos=True, max_tokens=1)
            core.add_request("long", {"prompt_token_ids": prompt}, once)
    core.abort_request(["stream"])
    while core.has_unfinished_requests():
        core.step()
    gaps = [
        Now(after.cpu - before.cpu, after.clock - before.clock)
        for before, after in itertools.pairwise(times)
    ]
    during = gaps[TOKENS_BEFORE - 1 :]
    assert arrived is not None
    return Measured(
        usual=statistics.median(gap.cpu for gap in gaps[1 : TOKENS_BEFORE - 1]),
        pause=max(gap.cpu for gap in during),
        clock=max(gap.clock for gap in during),
        wait=first.cpu - arrived.cpu,
        tokens=len(during),
    )


def run_variant(
    turn: Connection, arguments: argparse.Namespace, budget: int, max_len: int, most: int
) -> None:
    """In a process of its own: measure one arrival whenever it is this variant's turn."""
    engine = open_engine(arguments, budget, max_len)
    size = engine.model_config.get_vocab_size()
    turn.send("ready")
    while (seed := turn.recv()) is not None:
        chance = random.Random(seed)
        prompt = [chance.randrange(100, size) for _ in range(arguments.prompt)]
        short = [chance.randrange(100, size) for _ in range(STREAM_PROMPT)]
        turn.send(measure(engine, prompt, short, most))
    engine.llm_engine.engine_core.shutdown()


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", type=int, default=2000, help="tokens of the long prompt")
    parser.add_argument("--budgets", type=int, nargs="+", default=[256, 512], help="of the chunks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="float32")
    parser.add_argument("--cache-mib", type=int, default=1024, help="size of the KV cache")
    parser.add_argument("--warm-up", action="store_true", help="run every program once before")
    arguments = parser.parse_args()
    # Room for a token of the stream with every chunk.
    most = TOKENS_BEFORE + arguments.prompt // (min(arguments.budgets) - 1) + 8
    max_len = max(arguments.prompt + 1, STREAM_PROMPT + most)
    whole = max_len + 2
    context = multiprocessing.get_context("spawn")
    turns, processes = {}, []
    for budget in [*arguments.budgets, whole]:
        turns[budget], end = context.Pipe()
        process = context.Process(
            target=run_variant, args=(end, arguments, budget, max_len, most), daemon=True
        )
        process.start()
        processes.append(process)
        turns[budget].recv()
    results: dict[int, list[Measured]] = {budget: [] for budget in turns}
    for seed, (budget, turn) in itertools.product(range(arguments.rounds), turns.items()):
        turn.send(seed)
        results[budget].append(turn.recv())
        print(f"{budget} tokens a step: {results[budget][-1]}", file=sys.stderr, flush=True)
    for turn in turns.values():
        turn.send(None)
    for process in processes:
        process.join(30)
    report(arguments, results, whole)


def report(arguments: argparse.Namespace, results: dict[int, list[Measured]], whole: int) -> None:
    """Print the table: of each kind the quietest arrival, as other processes only add."""
    import torch
    import vllm

    print(
        f"\nprompt of {arguments.prompt} tokens, {arguments.dtype}, 1 thread, CPU seconds of the "
        f"quietest of {arguments.rounds} arrivals, vLLM {vllm.__version__}, "
        f"torch {torch.__version__}\n"
    )
    print(
        "| prompt arrives | usual gap | longest gap | by the clock | in other arrivals "
        "| against whole | stream's tokens meanwhile | prompt's first token |"
    )
    print("|---|---|---|---|---|---|---|---|")
    quietest = {budget: min(rows, key=lambda row: row.pause) for budget, rows in results.items()}
    for budget in [whole, *arguments.budgets]:
        name = "whole, in one step" if budget == whole else f"in chunks, {budget} tokens a step"
        best = quietest[budget]
        others = f"to {max(row.pause for row in results[budget]) * 1e3:.0f} ms"
        print(
            f"| {name} | {best.usual * 1e3:.0f} ms | {best.pause * 1e3:.0f} ms "
            f"| {best.clock * 1e3:.0f} ms | {others} "
            f"| {quietest[whole].pause / best.pause:.1f}x shorter "
            f"| {best.tokens} | {best.wait:.2f} s |"
        )


if __name__ == "__main__":
    main()
