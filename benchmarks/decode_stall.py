# SPDX-License-Identifier: Apache-2.0
"""How long a running stream pauses while somebody else's long prompt arrives.

    python benchmarks/decode_stall.py --model CHECKPOINT --prompt 8000

One request streams tokens; a long prompt arrives. With the whole prompt in one step, which is
what an engine that runs one prefill at a time does, the stream pauses for all of it. In chunks,
it gets a token with every chunk. The pause is the largest gap between two tokens of the stream
from the arrival until the long prompt's own first token.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import sys
import time
from typing import Any, NamedTuple

TOKENS_BEFORE = 8
STREAM_PROMPT = 16


class Measured(NamedTuple):
    """One arrival, in seconds."""

    usual: float  # median gap without the long prompt
    pause: float  # largest gap with it
    wait: float  # until the long prompt's first token
    tokens: int  # that the stream got meanwhile


def open_engine(arguments: argparse.Namespace, budget: int, max_len: int) -> Any:
    """A vLLM engine inside this process whose steps hold at most ``budget`` tokens."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # it would log among our results
    from vllm import LLM

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
    times: list[float] = []
    arrived = first = 0.0
    while not first:
        outputs = {output.request_id: output for output in core.step()}
        now = time.perf_counter()
        if "stream" in outputs:
            times.append(now)
            if outputs["stream"].finished and "long" not in outputs:
                raise RuntimeError("the stream ended before the prompt's first token")
        if "long" in outputs:
            first = now
        if len(times) == TOKENS_BEFORE and not arrived:
            arrived = time.perf_counter()
            once = SamplingParams(temperature=0, ignore_eos=True, max_tokens=1)
            core.add_request("long", {"prompt_token_ids": prompt}, once)
    core.abort_request(["stream"])
    while core.has_unfinished_requests():
        core.step()
    gaps = [after - before for before, after in itertools.pairwise(times)]
    during = gaps[TOKENS_BEFORE - 1 :]
    return Measured(
        usual=statistics.median(gaps[1 : TOKENS_BEFORE - 1]),
        pause=max(during),
        wait=first - arrived,
        tokens=len(during),
    )


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
    arguments = parser.parse_args()
    # Room for a token of the stream with every chunk.
    most = TOKENS_BEFORE + arguments.prompt // (min(arguments.budgets) - 1) + 8
    max_len = max(arguments.prompt + 1, STREAM_PROMPT + most)
    whole = max_len + 2
    results: dict[int, list[Measured]] = {}
    for budget in [*arguments.budgets, whole]:
        engine = open_engine(arguments, budget, max_len)
        size = engine.model_config.get_vocab_size()
        chance = random.Random(0)
        prompts = [
            [chance.randrange(100, size) for _ in range(arguments.prompt)]
            for _ in range(arguments.rounds)
        ]
        short = [chance.randrange(100, size) for _ in range(STREAM_PROMPT)]
        results[budget] = [measure(engine, prompt, short, most) for prompt in prompts]
        print(f"{budget} tokens a step: done", file=sys.stderr)
        engine.llm_engine.engine_core.shutdown()
        del engine
    report(arguments, results, whole)


def report(arguments: argparse.Namespace, results: dict[int, list[Measured]], whole: int) -> None:
    """Print the table: of each kind the quietest arrival, as other processes only add."""
    import torch
    import vllm

    print(
        f"\nprompt of {arguments.prompt} tokens, {arguments.dtype}, {torch.get_num_threads()} "
        f"threads, the quietest of {arguments.rounds} arrivals, vLLM {vllm.__version__}, "
        f"torch {torch.__version__}\n"
    )
    print(
        "| prompt arrives | usual gap | longest gap | in other arrivals | against whole "
        "| stream's tokens meanwhile | prompt's first token |"
    )
    print("|---|---|---|---|---|---|---|")
    quietest = {budget: min(rows, key=lambda row: row.pause) for budget, rows in results.items()}
    for budget in [whole, *arguments.budgets]:
        name = "whole, in one step" if budget == whole else f"in chunks, {budget} tokens a step"
        best = quietest[budget]
        others = f"to {max(row.pause for row in results[budget]) * 1e3:.0f} ms"
        print(
            f"| {name} | {best.usual * 1e3:.0f} ms | {best.pause * 1e3:.0f} ms | {others} "
            f"| {quietest[whole].pause / best.pause:.1f}x shorter "
            f"| {best.tokens} | {best.wait:.2f} s |"
        )


if __name__ == "__main__":
    main()
