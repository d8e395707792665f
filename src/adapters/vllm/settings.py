# SPDX-License-Identifier: Apache-2.0
"""Our own settings inside a vLLM configuration: ``--additional-config``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import torch

from trnport.bootstrap import check_kernels
from trnport.core.config import NeuronConfig
from trnport.core.errors import ConfigError
from trnport.serving_defaults import with_defaults

NAMESPACES = ("neuron_config",)
"""Keys that ``additional_config`` may have."""


def neuron_config_of(vllm_config: Any) -> NeuronConfig:
    """Read and check ``additional_config["neuron_config"]`` against vLLM's own limits.

    Args:
        vllm_config: A ``vllm.config.VllmConfig`` with a model.

    Raises:
        ConfigError: A key is unknown or a value does not fit; the message names it.
    """
    namespaces = check_namespaces(vllm_config.additional_config)
    settings = NeuronConfig.from_dict(
        with_defaults(
            namespaces.get("neuron_config") or {},
            is_bfloat16=vllm_config.model_config.dtype == torch.bfloat16,
            max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        ),
        max_model_len=vllm_config.model_config.max_model_len,
        max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        max_num_batched_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        tp=vllm_config.parallel_config.tensor_parallel_size,
        block_size=vllm_config.cache_config.block_size,
    )
    check_kernels(settings.kernels)
    return settings


def check_namespaces(additional_config: object) -> Mapping[str, Mapping[str, Any]]:
    """Refuse keys of ``additional_config`` that nothing would ever read.

    Raises:
        ConfigError: A key is unknown, or a value is not a mapping.
    """
    if not isinstance(additional_config, Mapping):
        raise ConfigError(
            f"additional_config must be a JSON object, not {type(additional_config).__name__}"
        )
    for key, value in additional_config.items():
        if key not in NAMESPACES:
            raise ConfigError(_unknown(str(key)))
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"additional_config[{key!r}] must be a JSON object, not {type(value).__name__}"
            )
    return additional_config


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, NAMESPACES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"options go inside {NAMESPACES[0]!r}"
    return (
        f"additional_config has the unknown key {key!r}; {hint} "
        f"Known keys: {', '.join(NAMESPACES)}."
    )
