# SPDX-License-Identifier: Apache-2.0
"""Mistral (Jiang et al., 2023): configuration and entry point."""

from __future__ import annotations

from typing import Any

import torch

from trnport.core.config import NeuronConfig
from trnport.core.context import ModelContext
from trnport.core.hf_config import as_mapping, refuse_unknown_fields
from trnport.core.nn.decoder import DecoderModel
from trnport.core.nn.decoder_config import (
    SHARED_FIELDS,
    DecoderConfig,
    checked_windows,
    read_shared_fields,
)

DEFAULT_ROPE_THETA = 10000.0
"""Base of configurations written before the field existed."""


class MistralConfig(DecoderConfig):
    """Sizes and switches of one Mistral."""

    @classmethod
    def from_hf(cls, hf_config: Any) -> MistralConfig:
        """Read a Transformers configuration, or the dictionary in config.json.

        Raises:
            UnsupportedConfigError: A field is missing, or asks for mathematics that this
                model does not implement.
        """
        config = as_mapping(hf_config)
        refuse_unknown_fields(config, SHARED_FIELDS | {"sliding_window"}, "Mistral")
        shared = read_shared_fields(config, "Mistral", default_theta=DEFAULT_ROPE_THETA)
        windows = [config.get("sliding_window")] * shared["num_hidden_layers"]
        return cls(**shared, sliding_windows=checked_windows(windows))


class MistralForCausalLM:
    """Builds the Mistral that a configuration asks for."""

    @classmethod
    def from_configs(
        cls,
        hf_config: Any,
        neuron_config: NeuronConfig,
        *,
        context: ModelContext,
        dtype: torch.dtype,
    ) -> DecoderModel:
        """Build a Mistral on the meta device.

        Args:
            hf_config: A Transformers configuration or the dictionary in config.json.
            neuron_config: Validated settings. Nothing in them changes this model yet.
            context: The ports.
            dtype: Dtype of weights, activations and cache.

        Raises:
            UnsupportedConfigError: The message names the field that is not implemented.
        """
        config = MistralConfig.from_hf(hf_config)
        with torch.device("meta"):
            return DecoderModel(config, context, dtype)
