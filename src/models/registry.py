# SPDX-License-Identifier: Apache-2.0
"""Which model implements a Hugging Face architecture."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from trnport.core.errors import UnsupportedModelError

# Dotted paths, so that naming a model does not import it.
_MODELS = MappingProxyType(
    {
        "LlamaForCausalLM": "trnport.models.llama:LlamaForCausalLM",
        "MistralForCausalLM": "trnport.models.mistral:MistralForCausalLM",
        "Qwen3ForCausalLM": "trnport.models.qwen3:Qwen3ForCausalLM",
        # The bare decoders, as embedding models name them.
        "LlamaModel": "trnport.models.llama:LlamaForCausalLM",
        "Qwen3Model": "trnport.models.qwen3:Qwen3ForCausalLM",
    }
)


def supported_architectures() -> list[str]:
    """Architecture names that :func:`resolve` knows, sorted."""
    return sorted(_MODELS)


def resolve(architectures: Sequence[str] | None) -> Any:
    """The factory of the first supported architecture.

    Args:
        architectures: The field of that name in config.json.

    Raises:
        UnsupportedModelError: None is supported; the message lists those that are.
    """
    for name in architectures or ():
        if name in _MODELS:
            module, _, attribute = _MODELS[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
    raise UnsupportedModelError(_explain(list(architectures or ())))


def _explain(architectures: list[str]) -> str:
    supported = supported_architectures()
    near = difflib.get_close_matches(architectures[0], supported, n=1) if architectures else []
    hint = f" (nearest: {near[0]})" if near else ""
    return (
        f"config.json names the architectures {architectures}, and none of them is supported"
        f"{hint}. Supported: {', '.join(supported)}."
    )
