# SPDX-License-Identifier: Apache-2.0
"""What Llama needs to know from config.json."""

from __future__ import annotations

from typing import Any, Self

import attrs

from trnport.core.errors import UnsupportedConfigError
from trnport.core.hf_config import as_mapping, refuse_unknown_fields, require
from trnport.core.nn.rope import RopeParameters

DEFAULT_ROPE_THETA = 10000.0
"""Base of configurations written before the field existed (Llama 1 and 2)."""

ROPE_FIELDS = frozenset(
    {
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "partial_rotary_factor",
        "original_max_position_embeddings",
    }
)


@attrs.frozen
class LlamaConfig:
    """Sizes and switches of one Llama.

    Attributes:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the gated MLP.
        num_hidden_layers: Decoder layers.
        num_attention_heads: Query heads.
        num_key_value_heads: KV heads; divides the query heads.
        head_dim: Size of a head; hidden_size / heads unless config.json says otherwise.
        rms_norm_eps: Added to the mean square in every norm.
        max_position_embeddings: Longest sequence of training.
        tie_word_embeddings: What config.json says; the checkpoint has a say too.
        attention_bias: Whether the attention projections have a bias.
        mlp_bias: Whether the MLP projections have a bias.
        rope: Rotary embedding parameters.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    rope: RopeParameters

    @classmethod
    def from_hf(cls, hf_config: Any) -> Self:
        """Read a Transformers configuration, or the dictionary in config.json.

        Raises:
            UnsupportedConfigError: A field is missing, or asks for mathematics that this
                model does not implement.
        """
        config = as_mapping(hf_config)
        own_fields = {field.name for field in attrs.fields(cls)} | {"hidden_act"} | ROPE_FIELDS
        refuse_unknown_fields(config, own_fields, "Llama")
        activation = config.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise UnsupportedConfigError(
                f"hidden_act={activation!r} is not implemented; Llama here computes 'silu'"
            )
        rope = RopeParameters.from_hf(config, default_theta=DEFAULT_ROPE_THETA)
        if rope.partial_rotary_factor != 1 and rope.rope_type != "proportional":
            raise UnsupportedConfigError(
                f"partial_rotary_factor={rope.partial_rotary_factor} with "
                f"rope_type={rope.rope_type!r}: Llama rotates whole heads. Set it to 1"
            )
        heads = require(config, "num_attention_heads")
        hidden = require(config, "hidden_size")
        head_dim = config.get("head_dim") or _derived_head_dim(hidden, heads)
        return cls(
            vocab_size=require(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=require(config, "intermediate_size"),
            num_hidden_layers=require(config, "num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            rms_norm_eps=require(config, "rms_norm_eps"),
            max_position_embeddings=require(config, "max_position_embeddings"),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            rope=rope,
        )


def _derived_head_dim(hidden_size: int, num_heads: int) -> int:
    if hidden_size % num_heads:
        raise UnsupportedConfigError(
            f"hidden_size={hidden_size} is not a multiple of num_attention_heads={num_heads} "
            "and config.json gives no head_dim; add it"
        )
    return hidden_size // num_heads
