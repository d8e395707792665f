# SPDX-License-Identifier: Apache-2.0
"""The entry point named after the Hugging Face architecture."""

from __future__ import annotations

from typing import Any

import torch

from trnport.core.config import NeuronConfig
from trnport.core.context import ModelContext
from trnport.core.nn.decoder import DecoderModel
from trnport.models.qwen3.attention import Qwen3Attention, qwen3_mapping
from trnport.models.qwen3.config import Qwen3Config


class Qwen3ForCausalLM:
    """Builds the Qwen3 that a configuration asks for."""

    @classmethod
    def from_configs(
        cls,
        hf_config: Any,
        neuron_config: NeuronConfig,
        *,
        context: ModelContext,
        dtype: torch.dtype,
    ) -> DecoderModel:
        """Build a Qwen3 on the meta device.

        Args:
            hf_config: A Transformers configuration or the dictionary in config.json.
            neuron_config: Validated settings. Nothing in them changes this model yet.
            context: The ports.
            dtype: Dtype of weights, activations and cache.

        Raises:
            UnsupportedConfigError: The message names the field that is not implemented.
        """
        config = Qwen3Config.from_hf(hf_config)
        with torch.device("meta"):
            return DecoderModel(
                config, context, dtype, attention_type=Qwen3Attention, mapping=qwen3_mapping
            )
