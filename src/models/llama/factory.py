# SPDX-License-Identifier: Apache-2.0
"""The entry point named after the Hugging Face architecture."""

from __future__ import annotations

from trnport.core.nn.decoder import DecoderFactory
from trnport.models.llama.config import LlamaConfig


class LlamaForCausalLM(DecoderFactory):
    """Builds the Llama that a configuration asks for."""

    config_type = LlamaConfig
