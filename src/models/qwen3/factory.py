# SPDX-License-Identifier: Apache-2.0
"""The entry point named after the Hugging Face architecture."""

from __future__ import annotations

from trnport.core.nn.decoder import DecoderFactory
from trnport.models.qwen3.attention import Qwen3Attention, qwen3_mapping
from trnport.models.qwen3.config import Qwen3Config


class Qwen3ForCausalLM(DecoderFactory):
    """Builds the Qwen3 that a configuration asks for."""

    config_type = Qwen3Config
    attention_type = Qwen3Attention
    mapping = staticmethod(qwen3_mapping)
