# SPDX-License-Identifier: Apache-2.0
"""What decoders of Llama's shape need to know from config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from trnport.core.errors import UnsupportedConfigError
from trnport.core.hf_config import require
from trnport.core.nn.rope import RopeParameters

ROPE_FIELDS = frozenset(
    {
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "partial_rotary_factor",
        "original_max_position_embeddings",
    }
)

SHARED_FIELDS = ROPE_FIELDS | {
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "max_position_embeddings",
    "tie_word_embeddings",
    "hidden_act",
}
"""Fields of config.json that :func:`read_shared_fields` reads."""


@attrs.frozen(kw_only=True)
class DecoderConfig:
    """Sizes and switches of one decoder.

    Attributes:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the gated MLP.
        num_hidden_layers: Decoder layers.
        num_attention_heads: Query heads.
        num_key_value_heads: KV heads; divides the query heads.
        head_dim: Size of a head; need not be hidden_size / heads.
        rms_norm_eps: Added to the mean square in every norm.
        max_position_embeddings: Longest sequence of training.
        tie_word_embeddings: What config.json says; the checkpoint has a say too.
        rope: Rotary embedding parameters.
        attention_bias: Whether the attention projections have a bias.
        mlp_bias: Whether the MLP projections have a bias.
        sliding_windows: For each layer the latest positions that a query sees, itself
            included, or None for all; empty when no layer has a window.
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
    rope: RopeParameters
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_windows: tuple[int | None, ...] = ()

    def sliding_window(self, layer: int) -> int | None:
        """The window of one layer, None for all positions."""
        return self.sliding_windows[layer] if self.sliding_windows else None


def read_shared_fields(
    config: Mapping[str, Any],
    model: str,
    *,
    default_theta: float | None = None,
    default_head_dim: int | None = None,
) -> dict[str, Any]:
    """Read what all decoders of this shape have in common.

    Args:
        config: The dictionary in config.json.
        model: Name for error messages.
        default_theta: Base of the rotary embedding where the architecture defines one.
        default_head_dim: Size of a head where the architecture defines one; hidden_size / heads
            when None.

    Returns:
        Arguments of :class:`DecoderConfig`.

    Raises:
        UnsupportedConfigError: A field is missing, or asks for mathematics that these models
            do not have.
    """
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedConfigError(
            f"hidden_act={activation!r} is not implemented; {model} here computes 'silu'"
        )
    rope = RopeParameters.from_hf(config, default_theta=default_theta)
    if rope.partial_rotary_factor != 1 and rope.rope_type != "proportional":
        raise UnsupportedConfigError(
            f"partial_rotary_factor={rope.partial_rotary_factor} with "
            f"rope_type={rope.rope_type!r}: {model} rotates whole heads. Set it to 1"
        )
    heads = require(config, "num_attention_heads")
    hidden = require(config, "hidden_size")
    head_dim = config.get("head_dim") or default_head_dim
    return {
        "vocab_size": require(config, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": require(config, "intermediate_size"),
        "num_hidden_layers": require(config, "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "head_dim": head_dim or _derived_head_dim(hidden, heads),
        "rms_norm_eps": require(config, "rms_norm_eps"),
        "max_position_embeddings": require(config, "max_position_embeddings"),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "rope": rope,
    }


def checked_windows(windows: Sequence[int | None]) -> tuple[int | None, ...]:
    """Windows of all layers, empty when there is none.

    Raises:
        UnsupportedConfigError: A window is not a positive integer.
    """
    for window in windows:
        if window is not None and (type(window) is not int or window < 1):
            raise UnsupportedConfigError(
                f"sliding_window={window!r} must be a positive number of tokens, or null for none"
            )
    return tuple(windows) if any(window is not None for window in windows) else ()


def _derived_head_dim(hidden_size: int, num_heads: int) -> int:
    if hidden_size % num_heads:
        raise UnsupportedConfigError(
            f"hidden_size={hidden_size} is not a multiple of num_attention_heads={num_heads} "
            "and config.json gives no head_dim; add it"
        )
    return hidden_size // num_heads
