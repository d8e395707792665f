# SPDX-License-Identifier: Apache-2.0
"""How long a device waits for the host between two decode steps, with and without async scheduling.

    python benchmarks/host_gap.py --model CHECKPOINT --device-ms 5

Programs are replaced by a pause of a fixed length, which stands for a device; the time from the
end of one decode program to the start of the next is the host's gap. Both kinds of engine run in
turns, in this process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import torch

from trnport.core.metadata import ModelOutput

STEPS = 60


def open_engine(model: str, batch: int, async_scheduling: bool) -> Any:
    """An engine in this process whose programs sample."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM

    return LLM(
        model,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=batch,
        max_num_batched_tokens=128,
        kv_cache_memory_bytes=2 << 30,  # nothing may be preempted
        generation_config="vllm",
        max_logprobs=0,
        async_scheduling=async_scheduling,
        additional_config={
            "neuron_config": {
                "num_seqs_buckets": [batch],
                "on_device_sampling_config": {"all_greedy": True},
            }
        },
    )


def replace_programs(engine: Any, seconds: float, gaps: list[float]) -> None:
    """Let every program take a fixed time, without the processor, and say one token.

    Args:
        engine: The engine.
        seconds: The time.
        gaps: Gets the seconds before each decode program that follows another one.
    """
    worker = engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker

    ended: list[float] = []

    def prefill(**inputs: Any) -> ModelOutput:
        ended.clear()
        time.sleep(seconds)
        return ModelOutput(token_ids=torch.full_like(inputs["sampling_positions"], 5))

    def decode(**inputs: Any) -> ModelOutput:
        gaps.extend(time.perf_counter() - end for end in ended)
        output = prefill(**inputs)
        ended.append(time.perf_counter())
        return output

    programs = worker._executor._programs._programs
    for name in programs:
        programs[name] = decode if name.startswith("decode") else prefill


def generate(engine: Any, batch: int) -> None:
    """Let ``batch`` requests generate side by side."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True, detokenize=True)
    prompts = [{"prompt_token_ids": [3 + row, 4, 5]} for row in range(batch)]
    engine.generate(prompts, params, use_tqdm=False)


def main() -> None:
    """Print one line for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--device-ms", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engines = [open_engine(arguments.model, arguments.batch, kind) for kind in (False, True)]
    gaps: list[list[float]] = [[], []]
    for engine, gap in zip(engines, gaps, strict=True):
        replace_programs(engine, arguments.device_ms / 1e3, gap)
        generate(engine, arguments.batch)
        gap.clear()
    for _ in range(arguments.rounds):
        for engine in engines:
            generate(engine, arguments.batch)
    sync, ahead = (statistics.median(gap) * 1e3 for gap in gaps)
    print(f"gap per step: {sync:.2f} ms one after the other, {ahead:.2f} ms with async scheduling")
    print(f"ratio {sync / max(ahead, 1e-3):.1f}")


if __name__ == "__main__":
    main()
