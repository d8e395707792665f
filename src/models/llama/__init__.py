# SPDX-License-Identifier: Apache-2.0
"""Llama 1 to 3 and everything with the same architecture, such as SmolLM2 and TinyLlama."""

from trnport.models.llama.config import LlamaConfig
from trnport.models.llama.factory import LlamaForCausalLM

__all__ = ["LlamaConfig", "LlamaForCausalLM"]
