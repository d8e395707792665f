# SPDX-License-Identifier: Apache-2.0
"""``trnport plan``: what a server would need and compile, before anything is loaded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from typing import Any

from trnport.adapters.cli.lengths import read_lengths, render_advice
from trnport.adapters.cli.machine import inspect_machine
from trnport.adapters.cli.planning import Plan, make_plan
from trnport.adapters.cli.text import bullets, section, size
from trnport.core.errors import ConfigError


def run_plan(arguments: argparse.Namespace) -> int:
    """Print the plan.

    Returns:
        0, or 1 when not even one request of full length would fit.
    """
    lengths = None if arguments.lengths is None else read_lengths(arguments.lengths)
    machine = inspect_machine()
    given = arguments.memory_gib
    plan = make_plan(
        arguments.model,
        tp=arguments.tp,
        dtype=arguments.dtype,
        memory_bytes=machine.memory_bytes if given is None else int(given * 2**30),
        utilization=arguments.gpu_memory_utilization,
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        block_size=arguments.block_size,
        neuron_config=parse_neuron_config(arguments.neuron_config),
    )
    print(render_plan(plan, free_bytes=machine.free_bytes if given is None else None))
    if lengths is not None:
        print()
        print(
            render_advice(
                lengths,
                plan.buckets,
                max_num_seqs=plan.limits.max_num_seqs,
                max_prefill_tokens=plan.buckets.prefill_tokens[-1],
            )
        )
    return 0 if plan.fits else 1


def parse_neuron_config(text: str | None) -> dict[str, Any] | None:
    """The dictionary in a command-line argument.

    Raises:
        ConfigError: It is not a JSON object.
    """
    if text is None:
        return None
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--neuron-config {text!r} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"--neuron-config {text!r} is not a JSON object; write {{...}}")
    return values


def render_plan(plan: Plan, *, free_bytes: int | None = None) -> str:
    """The plan as text.

    Args:
        plan: The plan.
        free_bytes: Memory that is free now, where the plan is for this machine.
    """
    ranks = "1 rank" if plan.tp == 1 else f"{plan.tp} ranks"
    lines = [
        f"{plan.model} in {plan.dtype} on {ranks}",
        "",
        *section("Limits", _limits(plan)),
        *section("Memory", _memory(plan)),
        *section("KV cache of a rank", _cache(plan)),
        *section("Buckets", _buckets(plan)),
        *section(f"Programs: {len(plan.programs)}, in order of compilation", _programs(plan)),
        *bullets("One request of full length does not fit. Turn one of these knobs:", knobs(plan)),
        *bullets("Warnings", list(_warnings(plan, free_bytes))),
    ]
    return "\n".join(lines).rstrip()


def knobs(plan: Plan) -> list[str]:
    """What makes a request of full length fit; empty when one does."""
    if plan.fits:
        return []
    needed = plan.tp * (plan.weight_bytes + plan.smallest_cache_bytes)
    found = []
    if plan.capacity.tokens >= 2:
        found.append(f"--max-model-len {plan.capacity.tokens}, which fits")
    if needed <= plan.memory_bytes:
        found.append(
            f"--kv-cache-memory-bytes {plan.smallest_cache_bytes} for the server, a size of the "
            "cache in place of a share of the memory"
        )
    else:
        found.append(
            f"more memory: weights and one request take {size(needed)}, and there are "
            f"{size(plan.memory_bytes)}"
        )
    if plan.dtype == "float32":
        found.append("--dtype bfloat16, which halves weights and cache")
    return found


def _limits(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "max_model_len", str(plan.limits.max_model_len)
    yield "max_num_seqs", str(plan.limits.max_num_seqs)
    yield "max_num_batched_tokens", str(plan.limits.max_num_batched_tokens)
    yield "block_size", str(plan.capacity.block_size)


def _memory(plan: Plan) -> Iterator[tuple[str, str, str]]:
    stored = plan.checkpoint
    yield "memory of all ranks", *_size(plan.memory_bytes)
    if stored.problem:
        yield "checkpoint", "unknown", stored.problem
    else:
        yield "checkpoint", *_size(stored.num_bytes, f", {stored.num_tensors} tensors")
    yield "weights of a rank", *_size(plan.weight_bytes)
    yield "KV cache of a rank", *_size(plan.capacity.budget_bytes)
    yield "host, all ranks", *_size(plan.host_bytes, ", and Python, PyTorch and vLLM on top")


def _cache(plan: Plan) -> Iterator[tuple[str, str, str]]:
    capacity, length = plan.capacity, plan.limits.max_model_len
    heads = sorted({layer.num_kv_heads for layer in plan.spec.layers})
    yield "layers", str(len(plan.spec.layers)), ""
    yield "KV heads", _list(heads), "of each layer"
    if len(capacity.groups) > 1:
        yield "groups of layers", str(len(capacity.groups)), "a request owns blocks in each"
    yield "a token", *_size(plan.spec.bytes_per_token())
    yield "a block", *_size(capacity.bytes_per_block)
    yield "blocks", str(capacity.num_blocks), "the null block included"
    yield "tokens", str(capacity.tokens), ""
    yield f"requests of {length} tokens", str(capacity.requests(length)), "at the same time"


def _buckets(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "tokens of a prompt", _list(plan.buckets.prefill_tokens)
    if plan.buckets.prefill_seqs > 1:
        yield "prompts that share them", f"up to {plan.buckets.prefill_seqs}"
    yield "sequences of a decode step", _list(plan.buckets.decode_seqs)
    yield "tokens of context", _list(plan.buckets.contexts)


def _programs(plan: Plan) -> Iterator[tuple[str]]:
    return ((name,) for name in plan.programs)


def _warnings(plan: Plan, free_bytes: int | None) -> Iterator[str]:
    if free_bytes is not None and plan.host_bytes > free_bytes:
        yield (
            f"{size(free_bytes)} of this machine's memory are free at the moment, less than the "
            f"{size(plan.host_bytes)} that all ranks would take"
        )


def _size(num_bytes: int, remark: str = "") -> tuple[str, str]:
    return size(num_bytes), f"{num_bytes} bytes{remark}"


def _list(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))
