# SPDX-License-Identifier: Apache-2.0
"""Tiny, deliberately awkward checkpoints, written from a seed.

Sizes are odd on purpose: a vocabulary of 131, an intermediate size of 77, six heads over
two KV heads. Whatever divides by accident in real models does not divide here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

AWKWARD: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 77,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

LLAMAS: dict[str, dict[str, Any]] = {
    "awkward": {},
    "untied": {"tie_word_embeddings": False},
    "biased": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "multi_head": {"num_key_value_heads": 6},
    "multi_query": {"num_key_value_heads": 1},
    "wide_head": {"head_dim": 20},
    "eight_heads": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "twelve_heads": {"num_attention_heads": 12, "num_key_value_heads": 3},
    "llama3_rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "yarn_rope": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "linear_rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    },
    "dynamic_rope": {
        "max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    },
    "longrope": {
        "max_position_embeddings": 256,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [1.0, 2.0, 3.0, 4.0],
            "original_max_position_embeddings": 32,
        },
    },
}
"""Name to what differs from AWKWARD."""


def llama_model(name: str = "awkward", seed: int = 0, **overrides: Any) -> LlamaForCausalLM:
    """A random Transformers Llama, fp32, in eval mode; no token stops its generation."""
    torch.manual_seed(seed)
    config = LlamaConfig(**{**AWKWARD, **LLAMAS[name], **overrides})
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        # The default initialisation makes logits so alike that greedy ties break at random.
        torch.nn.init.normal_(parameter, std=0.2 if parameter.dim() > 1 else 0.1)
        if parameter.dim() == 1:
            parameter.data += 1
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def save_llama(
    directory: Path, name: str = "awkward", *, shards: bool = False, **overrides: Any
) -> LlamaForCausalLM:
    """Write a zoo Llama as a checkpoint and return the model it came from.

    Args:
        directory: Created if missing.
        name: Key of LLAMAS.
        shards: Split the weights into several files with an index, and leave a stray file
            with damaging contents that the index does not list.
        overrides: Further configuration fields.
    """
    model = llama_model(name, **overrides)
    if shards:
        model.save_pretrained(directory, max_shard_size="40KB")
        index = json.loads((directory / "model.safetensors.index.json").read_text())
        damage = {key: torch.full((3, 3), torch.nan) for key in index["weight_map"]}
        save_file(damage, directory / "stray.safetensors")
    else:
        model.save_pretrained(directory)
    strip_config(directory)
    return model


def strip_config(directory: Path) -> None:
    """Remove what Transformers derived on saving, as in files from the wild: head_dim."""
    file = directory / "config.json"
    config = json.loads(file.read_text())
    if config.get("head_dim") == config["hidden_size"] // config["num_attention_heads"]:
        del config["head_dim"]
    file.write_text(json.dumps(config))


def edit_weights(directory: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors of a single-file checkpoint, or delete them with None."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for key, tensor in changes.items():
        if tensor is None:
            del tensors[key]
        else:
            tensors[key] = tensor
    save_file(tensors, file, metadata={"format": "pt"})
