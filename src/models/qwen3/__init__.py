# SPDX-License-Identifier: Apache-2.0
"""Qwen3, the dense models, with full or partly sliding-window attention."""

from trnport.models.qwen3.config import Qwen3Config
from trnport.models.qwen3.factory import Qwen3ForCausalLM

__all__ = ["Qwen3Config", "Qwen3ForCausalLM"]
