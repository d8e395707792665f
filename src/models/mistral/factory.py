# SPDX-License-Identifier: Apache-2.0
"""Mistral (Jiang et al., 2023): configuration and entry point."""

from __future__ import annotations

from typing import Any

from trnport.core.hf_config import as_mapping, refuse_unknown_fields
from trnport.core.nn.decoder import DecoderFactory
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


class MistralForCausalLM(DecoderFactory):
    """Builds the Mistral that a configuration asks for."""

    config_type = MistralConfig
