# SPDX-License-Identifier: Apache-2.0
"""Operators of the Kernels port at the sizes of SmolLM2-135M, set against set.

    make bench-kernels BENCH_ARGS="--sets torch_cpu other"

Each call gets the next one of up to 30 copies of the inputs, as many as there are layers: weights
then come from memory, as they do in a model, not from the processor's cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from trnport import bootstrap
from trnport.adapters.cli.kernel_examples import example, parse_sizes
from trnport.core.kernel_calls import invoke
from trnport.core.kernels import operator_names
from trnport.core.ports.kernels import Kernels

LAYERS = 30
PACKED = {"linear", "mlp", "o_proj", "qkv_proj"}
MOST_BYTES = 256 << 20
HEADS = "heads=9,kv_heads=3,head_dim=64"
CACHE = "block_size=32"
ROWS = (1, 8, 32, 128, 1024)
"""Three batches of a decode, two lengths of a prompt."""

SHAPES: dict[str, list[str]] = {
    "decode_attention": [
        f"batch={batch},context={context},{CACHE},{HEADS}"
        for batch, context in ((1, 256), (8, 256), (32, 256), (1, 4096), (8, 1024))
    ],
    "kv_write": [
        f"tokens={rows},kv_heads=3,head_dim=64,blocks={rows // 32 + 9},{CACHE}" for rows in ROWS
    ],
    "linear": [f"tokens={rows},hidden=576,vocab=49152" for rows in (1, 8, 32)],
    "mlp": [f"tokens={rows},hidden=576,intermediate=1536" for rows in ROWS],
    "o_proj": [f"tokens={rows},heads=9,head_dim=64,hidden=576" for rows in ROWS],
    "prefill_attention": [f"tokens={rows},{HEADS}" for rows in (128, 1024)],
    "prefill_attention_with_prior": [
        f"tokens={rows},context=1024,{CACHE},{HEADS}" for rows in (32, 128, 1024)
    ],
    "qkv_proj": [f"tokens={rows},hidden=576,{HEADS}" for rows in ROWS],
    "rms_norm": [f"tokens={rows},hidden=576" for rows in ROWS],
    "rope": [f"tokens={rows},{HEADS}" for rows in ROWS],
    "top_k": [f"tokens={rows},vocab=49152,k=50" for rows in (1, 32)],
}


def tensor_bytes(inputs: dict[str, Any]) -> int:
    return sum(x.nbytes for x in inputs.values() if isinstance(x, torch.Tensor))


def copies(inputs: dict[str, Any], kernels: Kernels, operator: str) -> Iterator[dict[str, Any]]:
    """The inputs of one layer after the other, again and again, linear weights packed."""
    count = max(1, min(LAYERS, MOST_BYTES // tensor_bytes(inputs)))

    def copy(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.clone()
        is_linear = operator in PACKED and name.endswith("weight")
        return kernels.pack(operator, value) if is_linear else value

    return itertools.cycle(
        [{name: copy(name, value) for name, value in inputs.items()} for _ in range(count)]
    )


@pytest.mark.parametrize(
    ("operator", "shape"),
    [(operator, shape) for operator in operator_names() for shape in SHAPES[operator]],
)
def test_operator(
    operator: str, shape: str, kernel_set: str, benchmark: Any, pytestconfig: pytest.Config
) -> None:
    torch.set_num_threads(pytestconfig.getoption("--threads"))
    kernels = bootstrap.kernels(kernel_set)
    inputs = example(operator, parse_sizes(operator, shape), torch.bfloat16, seed=0)
    layers = copies(inputs, kernels, operator)
    benchmark.group = f"{operator} {shape}"
    benchmark.extra_info["bytes"] = tensor_bytes(inputs)
    with torch.inference_mode():
        benchmark(lambda: invoke(kernels, operator, next(layers)))
