# SPDX-License-Identifier: Apache-2.0
"""What a vLLM configuration asks of the programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnport.adapters.vllm.settings import neuron_config_of
from trnport.core.engine.features import EmbedsSpec, Features

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def features_of(vllm_config: VllmConfig) -> Features:
    """The features of the engine that a configuration describes."""
    model = vllm_config.model_config
    generates = model.runner_type != "pooling"
    embeds = EmbedsSpec(model.get_hidden_size(), model.dtype)
    return Features(
        generates=generates,
        scores_prompts=generates and neuron_config_of(vllm_config).enable_prompt_logprobs,
        prompt_embeds=embeds if model.enable_prompt_embeds else None,
    )
