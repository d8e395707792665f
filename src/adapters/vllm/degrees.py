# SPDX-License-Identifier: Apache-2.0
"""Refuse a tensor-parallel degree before vLLM does, whose message names no valid one.

vLLM checks that the degree divides the query heads before it asks the platform anything. The
hook that it runs earlier belongs to a model: a class in its table of architectures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trnport.core.parallel import HeadSharding


def check_degree(vllm_config: Any) -> None:
    """Refuse a tensor-parallel degree at which the model's heads cannot be split.

    Args:
        vllm_config: A ``vllm.config.VllmConfig`` with a model.

    Raises:
        ConfigError: Names the degree and those that are possible.
    """
    model = vllm_config.model_config.model_arch_config
    tp = vllm_config.parallel_config.tensor_parallel_size
    HeadSharding(model.total_num_attention_heads, model.total_num_kv_heads, tp)


def register_degree_check(architectures: Iterable[str]) -> None:
    """Have vLLM run :func:`check_degree` for these architectures; idempotent.

    What vLLM itself does for an architecture stays in place and runs afterwards.
    """
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig

    for architecture in architectures:
        known = MODELS_CONFIG_MAP.get(architecture, VerifyAndUpdateConfig)
        if not getattr(known, "checks_degree", False):
            MODELS_CONFIG_MAP[architecture] = _with_check(known)


def _with_check(known: Any) -> type:
    def verify_and_update_config(vllm_config: Any) -> None:
        check_degree(vllm_config)
        known.verify_and_update_config(vllm_config)

    members = {
        "checks_degree": True,
        "verify_and_update_config": staticmethod(verify_and_update_config),
    }
    return type(known.__name__, (known,), members)
