# SPDX-License-Identifier: Apache-2.0
"""Our architectures in vLLM's model registry.

vLLM inspects a model's class before it builds a configuration: does it generate text, does it
take images? It never runs the class registered here; the worker builds the real model.
"""

from __future__ import annotations

from typing import NoReturn

from trnport.adapters.vllm import PLATFORM


def register_where_active() -> None:
    """Register every supported architecture, if our platform is the current one."""
    from vllm.platforms import current_platform

    # The dotted path, since other plugins have a class of the same name.
    active = type(current_platform)
    if f"{active.__module__}.{active.__qualname__}" == PLATFORM:
        register_architectures()


def register_architectures() -> None:
    """Put a stand-in for every supported architecture, and our checks, into vLLM's tables."""
    import torch
    from vllm.model_executor.models.registry import ModelRegistry

    from trnport.adapters.vllm.degrees import register_degree_check
    from trnport.models.registry import supported_architectures

    # The class is made here and not at module level, so that importing this module does not
    # import torch. Its methods and their argument names are what vLLM looks for.
    class EmbeddingStandIn(torch.nn.Module):
        """Says "embeddings of texts, nothing else" to vLLM's inspection."""

        is_pooling_model = True

        def __init__(self, vllm_config: object, prefix: str = "") -> None:
            super().__init__()
            _refuse()

        def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
            _refuse()

        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            _refuse()

    class TextGenerationStandIn(EmbeddingStandIn):
        """Says "text generation"; with --runner pooling vLLM then asks for embeddings."""

        is_pooling_model = False

        def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
            _refuse()

    for architecture in supported_architectures():
        generates = architecture.endswith("ForCausalLM")
        base = TextGenerationStandIn if generates else EmbeddingStandIn
        stand_in = type(architecture, (base,), {})
        ModelRegistry.register_model(architecture, stand_in)
    register_degree_check(supported_architectures())


def _refuse() -> NoReturn:
    raise NotImplementedError(
        "this class only describes the model to vLLM; trnport's worker builds the real one"
    )
