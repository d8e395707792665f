# SPDX-License-Identifier: Apache-2.0
"""The one part of Qwen3 (Yang et al., 2025) that Llama does not have."""

from __future__ import annotations

import torch
from torch import Tensor

from trnport.core.context import ModelContext
from trnport.core.nn import RMSNorm
from trnport.core.nn.decoder import DecoderAttention
from trnport.core.nn.decoder_config import DecoderConfig
from trnport.core.nn.decoder_weights import decoder_mapping
from trnport.core.weights import TiedEmbeddings, WeightMapping, expand_layers


class Qwen3Attention(DecoderAttention):
    """Attention whose queries and keys are normalised, each head by itself, before RoPE."""

    def __init__(
        self, config: DecoderConfig, ctx: ModelContext, dtype: torch.dtype, index: int
    ) -> None:
        super().__init__(config, ctx, dtype, index)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, ctx, dtype)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, ctx, dtype)

    def before_rope(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise queries ``[T, Hq, D]`` and keys ``[T, Hk, D]`` over D."""
        return self.q_norm(q), self.k_norm(k)


def qwen3_mapping(
    config: DecoderConfig, tied: TiedEmbeddings, *, prefix: str = "model.", has_lm_head: bool = True
) -> WeightMapping:
    """Parameter names to checkpoint keys; arguments as of :func:`decoder_mapping`."""
    norms: dict[str, str] = {
        f"layers.{{layer}}.self_attn.{part}_norm.weight": (
            f"{prefix}layers.{{layer}}.self_attn.{part}_norm.weight"
        )
        for part in "qk"
    }
    shared = decoder_mapping(config, tied, prefix=prefix, has_lm_head=has_lm_head)
    return shared.merged(expand_layers(norms, config.num_hidden_layers))
