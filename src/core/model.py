# SPDX-License-Identifier: Apache-2.0
"""What the engine expects of a model."""

from __future__ import annotations

from typing import Any, Protocol, Self

import torch
from torch import Tensor

from trnport.core.config import NeuronConfig
from trnport.core.context import ModelContext
from trnport.core.kv.spec import KVSpec
from trnport.core.metadata import AttentionMetadata, ModelOutput, SamplingInputs
from trnport.core.ports.weights import WeightSource


class CausalLM(Protocol):
    """A decoder that the engine can run."""

    @classmethod
    def from_configs(
        cls,
        hf_config: Any,
        neuron_config: NeuronConfig,
        *,
        context: ModelContext,
        dtype: torch.dtype,
    ) -> Self:
        """Build on the meta device from a Hugging Face configuration.

        Raises:
            UnsupportedConfigError: The configuration asks for mathematics that are not
                implemented; the message names the field.
        """

    def load_weights(self, source: WeightSource, device: torch.device | str = "cpu") -> None:
        """Read this rank's weights.

        Raises:
            CheckpointError: Names every missing, unexpected and mis-shaped tensor.
        """

    def get_kv_spec(self) -> KVSpec:
        """Cache needs of this rank's attention layers."""

    def bind_kv_cache(self, kv_caches: dict[str, list[Tensor]]) -> None:
        """Give each layer its ``[k_cache, v_cache]``."""

    def cache_depends_on_seq_len(self, max_model_len: int) -> bool:
        """Whether cached keys of one prefix differ between sequences of different lengths.

        Blocks of such a model cannot be shared between requests.
        """

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""

    def __call__(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attn_metadata: dict[str, AttentionMetadata],
        sampling_positions: Tensor,
        sampling_params: SamplingInputs | None = None,
        spec_decode_metadata: Any = None,
        logit_mask: Tensor | None = None,
        rank: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_token_ids: Tensor | None = None,
        return_hidden_states: bool = False,
    ) -> ModelOutput:
        """Run one step; see :class:`trnport.core.metadata.StepInput` for the shapes."""

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Logits ``[n, vocab_size]`` of n rows of ``ModelOutput.hidden_states``."""


def model_bytes(model: Any) -> int:
    """Bytes of a model's parameters and buffers, loaded or on the meta device."""
    tensors = (*model.parameters(), *model.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
