# SPDX-License-Identifier: Apache-2.0
"""What the NKI kernels say about themselves: limits, coverage, counts and estimates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from trnport import bootstrap
from trnport.core.config import NeuronConfig
from trnport.core.errors import ConfigError
from trnport.core.kv import DEFAULT_BLOCK_SIZE
from trnport.core.ports import Kernels


def estimate_step(
    path: str | Path,
    *,
    phase: str = "decode",
    batch: int = 8,
    context: int = 4096,
    tp: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    block_size: int = DEFAULT_BLOCK_SIZE,
    target: str = "trn2",
    lnc: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Any:
    """Estimate one step of a model's rank 0 from what our NKI kernels do in a simulator.

    Args:
        path: Checkpoint directory; its config.json is enough.
        phase: "decode" of one token for each of ``batch`` requests that hold ``context``
            tokens, or "prefill" of one prompt of ``context`` tokens.
        batch: Requests of a decode step.
        context: Tokens of each.
        tp: Tensor-parallel degree.
        dtype: Dtype of weights, activations and cache.
        block_size: Positions per KV block.
        target: "trn2" or "trn3".
        lnc: Physical cores of a logical one.
        progress: Told what is counted next.

    Raises:
        TrnportError: The model, the degree or a size cannot work; the message names it.
    """
    roofline = bootstrap.load_nki("roofline")
    settings = NeuronConfig.from_dict(
        {"num_seqs_buckets": [batch], "num_batched_tokens_buckets": [context]},
        max_model_len=context,
        max_num_seqs=batch,
        max_num_batched_tokens=context,
        tp=tp,
    )
    notes = roofline.ShapeNotes()
    model: Any = bootstrap.build_model(
        bootstrap.read_hf_config(path),
        settings,
        dtype=dtype,
        collectives=bootstrap.shape_collectives(tp),
        kernels=roofline.shape_kernels(notes),
    )
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(name, buffer.to("meta"), persistent=False)
    blocks = batch * -(-context // block_size) + 1
    spec = model.get_kv_spec()
    model.bind_kv_cache(
        {
            layer.name: [
                torch.empty(
                    (blocks, layer.num_kv_heads, block_size, layer.head_size),
                    dtype=layer.dtype,
                    device="meta",
                )
                for _ in "kv"
            ]
            for layer in spec.layers
        }
    )
    bootstrap.build_executor(
        model,
        settings,
        block_size=block_size,
        max_model_len=context,
        tp=tp,
        device="meta",
        compiler=roofline.ProgramNotes(notes),
    ).warm_up()
    name = next(name for name in notes.calls if name.startswith(phase))
    estimate: Any = roofline.estimate_step(
        name, notes.calls[name], target=target, lnc=lnc, progress=progress
    )
    return estimate


def nki_limits(operator: str) -> list[tuple[str, int, str]]:
    """(size, the largest that our NKI kernel takes, what runs out beyond it)."""
    limits = bootstrap.load_nki("limits").LIMITS[operator]
    return [(name, most, limits.why[name]) for name, most in limits.most.items()]


@contextlib.contextmanager
def nki_launches(target: str) -> Iterator[list[dict[str, Any]]]:
    """Counts and bounds of the NKI kernels that run inside the ``with`` block.

    The list is filled when the block ends; empty where nothing of NKI ran.
    """
    found: list[dict[str, Any]] = []
    try:
        roofline = bootstrap.load_nki("roofline")
    except ConfigError:  # without the extra nothing of NKI can run
        yield found
        return
    with roofline.launches() as heard:
        yield found
    found.extend(roofline.describe(launch, target) for launch in heard)


def kernel_coverage(kernels: Kernels, operator: str) -> dict[str, Any]:
    """What a set or its part says about where an operator ran; empty if it does not say."""
    owner = getattr(getattr(kernels, operator), "__self__", None)
    report = getattr(owner, "coverage", None)
    return report().get(operator, {}) if callable(report) else {}
