# SPDX-License-Identifier: Apache-2.0
"""Mistral 7B and its kin: Llama's network with a window on every layer, or none."""

from trnport.models.mistral.factory import MistralConfig, MistralForCausalLM

__all__ = ["MistralConfig", "MistralForCausalLM"]
