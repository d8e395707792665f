# SPDX-License-Identifier: Apache-2.0
"""Tiny Qwen3 and Mistral checkpoints with windows of awkward sizes.

The block size of the tests is 4: a window of 3 is smaller than a block, 7 and 9 are no
multiple of one, 1 sees only itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel, Qwen3Config
from transformers import Qwen3ForCausalLM as Qwen3

from tests.zoo import AWKWARD

FULL, SLIDING = "full_attention", "sliding_attention"
MIXED = [FULL, SLIDING, SLIDING, FULL, SLIDING]


def _windows(window: int, types: list[str] | None = None, **more: Any) -> dict[str, Any]:
    settings = {"use_sliding_window": True, "sliding_window": window, **more}
    if types is not None:
        settings |= {"layer_types": types, "num_hidden_layers": len(types)}
    return settings


QWEN3 = AWKWARD | {
    "head_dim": 10,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
QWENS: dict[str, dict[str, Any]] = {
    "full": {"use_sliding_window": False},
    "full_biased": {"attention_bias": True, "tie_word_embeddings": False},
    "eight_heads": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "mixed_w3": _windows(3, MIXED),
    "mixed_w7": _windows(7, [SLIDING, FULL, SLIDING]),
    "mixed_w9": _windows(9, num_hidden_layers=3, max_window_layers=1),
    "all_sliding_w1": _windows(1, [SLIDING, SLIDING]),
    "all_sliding_w5": _windows(5, [SLIDING, SLIDING]),
    "all_sliding_w8": _windows(8, [SLIDING, SLIDING], num_key_value_heads=1),
}
"""Name to what differs from QWEN3."""

MISTRALS: dict[str, dict[str, Any]] = {
    "windowed": {"sliding_window": 6},
    "unwindowed": {"sliding_window": None, "head_dim": 20},
}


def window_model(family: str, name: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random Transformers model, fp32, in eval mode; no token stops its generation."""
    torch.manual_seed(seed)
    if family == "qwen3":
        config: Any = Qwen3Config(**{**QWEN3, **QWENS[name], **overrides})
        model: Any = Qwen3(_eager(config))
    else:
        config = MistralConfig(**{**AWKWARD, **MISTRALS[name], **overrides})
        model = MistralForCausalLM(_eager(config))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2 if parameter.dim() > 1 else 0.1)
        if parameter.dim() == 1:
            parameter.data += 1
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval()


def save_window_model(directory: Path, family: str, name: str, **overrides: Any) -> PreTrainedModel:
    """Write a model of this zoo as a checkpoint and return it."""
    model = window_model(family, name, **overrides)
    model.save_pretrained(directory)
    return model


def _eager(config: Any) -> Any:
    config._attn_implementation = "eager"
    return config
