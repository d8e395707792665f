# SPDX-License-Identifier: Apache-2.0
"""What Llama needs to know from config.json."""

from __future__ import annotations

from typing import Any

from trnport.core.hf_config import as_mapping, refuse_unknown_fields
from trnport.core.nn.decoder_config import SHARED_FIELDS, DecoderConfig, read_shared_fields

DEFAULT_ROPE_THETA = 10000.0
"""Base of configurations written before the field existed (Llama 1 and 2)."""


class LlamaConfig(DecoderConfig):
    """Sizes and switches of one Llama."""

    @classmethod
    def from_hf(cls, hf_config: Any) -> LlamaConfig:
        """Read a Transformers configuration, or the dictionary in config.json.

        Raises:
            UnsupportedConfigError: A field is missing, or asks for mathematics that this
                model does not implement.
        """
        config = as_mapping(hf_config)
        refuse_unknown_fields(config, SHARED_FIELDS | {"attention_bias", "mlp_bias"}, "Llama")
        return cls(
            **read_shared_fields(config, "Llama", default_theta=DEFAULT_ROPE_THETA),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
        )
