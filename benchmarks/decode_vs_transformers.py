# SPDX-License-Identifier: Apache-2.0
"""Decode tokens per second, ours and Transformers ``generate``, interleaved in one process.

    python benchmarks/decode_vs_transformers.py --model CHECKPOINT

Both sides run the same checkpoint, dtype, prompts and thread count. A run generates with
few and with many tokens; the difference is decode alone, without prefill and start-up.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from trnport import bootstrap

Generate = Callable[[list[list[int]], int], list[list[int]]]
FEW = 4


def ours(model: str, dtype: torch.dtype, batch: int, length: int) -> Generate:
    """Our engine without vLLM."""
    session = bootstrap.open_session(
        model,
        dtype=dtype,
        max_model_len=length,
        max_num_seqs=batch,
        neuron_config={"num_seqs_buckets": sorted({1, batch})},
    )
    return lambda prompts, tokens: session.generate(prompts, max_tokens=tokens)


def transformers(model: str, dtype: torch.dtype) -> Generate:
    """Transformers with its default cache and attention."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    reference.generation_config.eos_token_id = None

    def generate(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
            )
        return out[:, ids.shape[1] :].tolist()

    return generate


def decode_rate(generate: Generate, prompts: list[list[int]], tokens: int) -> float:
    """Output tokens per second between token FEW and token ``tokens``, all rows together."""
    seconds = []
    for count in (FEW, tokens):
        start = time.perf_counter()
        outputs = generate(prompts, count)
        seconds.append(time.perf_counter() - start)
        if any(len(output) != count for output in outputs):
            raise RuntimeError("a peer stopped early; the rates would not compare")
    return len(prompts) * (tokens - FEW) / (seconds[1] - seconds[0])


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens")
    parser.add_argument("--tokens", type=int, default=64, help="generated tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--csv", type=Path, help="also append the rows to this file")
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    peer = transformers(arguments.model, dtype)
    rows = []
    for batch in arguments.batches:
        generator = torch.Generator().manual_seed(batch)
        prompts = torch.randint(100, 40000, (batch, arguments.prompt), generator=generator).tolist()
        sides = {
            "trnport": ours(arguments.model, dtype, batch, arguments.prompt + arguments.tokens),
            "transformers": peer,
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for round_number in range(arguments.rounds + 1):
            for name, generate in sides.items():
                rate = decode_rate(generate, prompts, arguments.tokens)
                if round_number:  # the first round warms both up
                    rates[name].append(rate)
            print(f"batch {batch}: round {round_number}/{arguments.rounds}", file=sys.stderr)
        rows.append((batch, rates))
    report(rows, arguments)


def report(rows: list[tuple[int, dict[str, list[float]]]], arguments: argparse.Namespace) -> None:
    """Print the table; ratios are medians of the rounds' own ratios."""
    print(
        f"\n{arguments.dtype}, {torch.get_num_threads()} threads, prompt {arguments.prompt}, "
        f"{arguments.tokens} tokens, {arguments.rounds} interleaved rounds, "
        f"torch {torch.__version__}\n"
    )
    print("| batch | trnport tok/s | transformers tok/s | ratio | ratio min..max |")
    print("|---|---|---|---|---|")
    table = []
    for batch, rates in rows:
        ratios = [a / b for a, b in zip(rates["trnport"], rates["transformers"], strict=True)]
        mine, theirs = (statistics.median(rates[name]) for name in ("trnport", "transformers"))
        ratio = statistics.median(ratios)
        print(
            f"| {batch} | {mine:.1f} | {theirs:.1f} | {ratio:.2f} "
            f"| {min(ratios):.2f}..{max(ratios):.2f} |"
        )
        table.append([arguments.dtype, batch, f"{mine:.2f}", f"{theirs:.2f}", f"{ratio:.3f}"])
    if arguments.csv:
        with arguments.csv.open("a", newline="") as file:
            csv.writer(file).writerows(table)


if __name__ == "__main__":
    main()
