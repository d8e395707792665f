# SPDX-License-Identifier: Apache-2.0
"""A file of request lengths, and what it says about the buckets of a plan."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trnport.adapters.cli.text import bullets, section
from trnport.core.config import SMALLEST_PREFILL_BUCKET
from trnport.core.engine.advice import best_buckets, simulate, waste
from trnport.core.engine.buckets import Buckets
from trnport.core.errors import ConfigError


def read_lengths(path: str | Path) -> list[tuple[int, int]]:
    """Prompt and output tokens of each request.

    Args:
        path: A line for each request: "120,30", ``[120, 30]``, or an object with the keys
            "prompt" and "output". A first line of words is a heading.

    Raises:
        ConfigError: The file cannot be read, a line is none of these, or there is none.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--lengths {str(path)!r} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        is_heading = number == 1 and not any(character.isdigit() for character in line)
        if line.strip() and not is_heading:
            found.append(_pair(line, f"--lengths {str(path)!r}, line {number}"))
    if not found:
        raise ConfigError(f"--lengths {str(path)!r} has no lines; write prompt,output in each")
    return found


def render_advice(
    lengths: Sequence[tuple[int, int]],
    buckets: Buckets,
    *,
    max_num_seqs: int,
    max_prefill_tokens: int,
) -> str:
    """Padding with the buckets of a plan, and lists of the same lengths that pad least."""
    fitting = [pair for pair in lengths if sum(pair) <= buckets.max_model_len]
    demand = simulate(
        fitting,
        max_num_seqs=max_num_seqs,
        max_prefill_tokens=max_prefill_tokens,
        max_prefills=buckets.prefill_seqs,
    )
    config: dict[str, list[int]] = {}
    rows: list[tuple[str, ...]] = [("", "padding now", "proposed", "buckets")]
    for title, key, sizes, now, smallest in (
        (
            "tokens of a prompt",
            "num_batched_tokens_buckets",
            demand.prefill_tokens,
            buckets.prefill_tokens,
            SMALLEST_PREFILL_BUCKET,
        ),
        (
            "sequences of a decode step",
            "num_seqs_buckets",
            demand.decode_seqs,
            buckets.decode_seqs,
            1,
        ),
        (
            "tokens of context",
            "decode_context_length_buckets",
            demand.contexts,
            buckets.contexts,
            2,
        ),
    ):
        best = best_buckets(sizes, len(now), limit=now[-1], smallest=smallest, known=now)
        rows.append((title, *_percent(sizes, now, best), ", ".join(map(str, best))))
        config[key] = list(best)
    tokens, seqs, contexts = config.values()
    proposal = Buckets(tokens, seqs, contexts, buckets.prefill_seqs)
    config["decode_context_length_buckets"].pop()  # max_model_len is always added
    if not config["decode_context_length_buckets"]:
        del config["decode_context_length_buckets"]
    lines = [
        *section(f"Traffic of {len(fitting)} requests, all waiting from the start", rows),
        f"Programs: {_programs(buckets)} now, {_programs(proposal)} proposed (LM heads aside)",
        f"--neuron-config '{json.dumps(config)}'",
        "",
        *bullets("Left out", list(_left_out(len(lengths) - len(fitting), buckets))),
    ]
    return "\n".join(lines).rstrip()


def _pair(line: str, where: str) -> tuple[int, int]:
    text = line.strip()
    try:
        values: Any = json.loads(text) if text[0] in "[{" else [int(v) for v in text.split(",")]
        pair = (values["prompt"], values["output"]) if isinstance(values, dict) else tuple(values)
        if len(pair) != 2 or any(type(value) is not int or value < 1 for value in pair):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{where}: {text!r} is not a prompt's and an output's length, such as 120,30"
        ) from None
    return pair[0], pair[1]


def _percent(demand: Mapping[int, int], now: Sequence[int], best: Sequence[int]) -> tuple[str, str]:
    return f"{waste(demand, now):.1%}", f"{waste(demand, best):.1%}"


def _programs(buckets: Buckets) -> int:
    return len(buckets.all_prefill_signatures()) + len(buckets.all_decode_signatures())


def _left_out(count: int, buckets: Buckets) -> Iterator[str]:
    if count:
        yield f"{count} requests of more than max_model_len={buckets.max_model_len} tokens"
