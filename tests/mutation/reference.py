# SPDX-License-Identifier: Apache-2.0
"""Bugs in the torch kernels, which are the reference, and in sampling on the device."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

TORCH = "adapters/torch_cpu/"
ON_TORCH = ("-k", "torch_cpu")
ATTENTION = ("tests/contracts/test_kernels_attention.py", *ON_TORCH)
OPERATORS = ("tests/contracts/test_kernels.py", *ON_TORCH)
SAMPLING = ("tests/core/functional/test_device_sampling.py",)

MUTANTS = (
    Mutant(
        "torch-window",
        TORCH + "attention.py",
        "(distance < window)",
        "(distance <= window)",
        "window off by one",
        ATTENTION,
    ),
    Mutant(
        "torch-newest",
        TORCH + "attention.py",
        "positions <= last_position[..., None]",
        "positions < last_position[..., None]",
        "mask off by one: the newest key is not seen",
        ATTENTION,
    ),
    Mutant(
        "torch-sink",
        TORCH + "attention.py",
        "sinks.float() / scale",
        "sinks.float()",
        "sink not unscaled",
        ATTENTION,
    ),
    Mutant(
        "torch-padding",
        TORCH + "paging.py",
        "rows = torch.where(real[:, None, None], rows, repeated)",
        "rows = torch.where(real.any(), rows, repeated)",
        "a padding row overwrites a real one",
        OPERATORS,
    ),
    Mutant(
        "torch-zero",
        TORCH + "ranking.py",
        "positive_zero = logits.float() + 0.0",
        "positive_zero = logits.float()",
        "minus zero ranks below zero",
        OPERATORS,
    ),
    Mutant(
        "torch-rope",
        TORCH + "elementwise.py",
        "second * cos + first * sin",
        "second * cos - first * sin",
        "rope sign",
        OPERATORS,
    ),
    Mutant(
        "sampling-shard",
        "core/functional/sampling.py",
        "tp.all_gather(indices + first, dim=1)",
        "tp.all_gather(indices, dim=1)",
        "start of the vocabulary shard ignored",
        SAMPLING,
    ),
    Mutant(
        "sampling-tiny-top-p",
        "core/functional/sampling.py",
        ".clamp(min=1)\n",
        ".clamp(min=0)\n",
        "top_p near 0 keeps no token",
        SAMPLING,
    ),
    Mutant(
        "selection-target",
        "core/functional/selection.py",
        "(before < target[:, None])",
        "(before <= target[:, None])",
        "one token too many",
        SAMPLING,
    ),
    Mutant(
        "selection-ranks",
        "core/functional/selection.py",
        "everyone[:, : tp.rank_in_group]",
        "everyone[:, : tp.rank_in_group + 1]",
        "own rank counted as a lower one",
        SAMPLING,
    ),
)
