# SPDX-License-Identifier: Apache-2.0
"""Where each parameter of a decoder stands in a Hugging Face checkpoint."""

from __future__ import annotations

from trnport.core.nn.decoder_config import DecoderConfig
from trnport.core.weights import TiedEmbeddings, WeightMapping, expand_layers

IGNORED = ("*.rotary_emb.inv_freq",)
"""Stored by old versions of Transformers; computed here."""


def decoder_mapping(config: DecoderConfig, tied: TiedEmbeddings) -> WeightMapping:
    """Parameter names to checkpoint keys.

    Args:
        config: Decides the number of layers and which biases exist.
        tied: Where the LM head comes from.
    """
    stem = "model.layers.{layer}."
    attention, mlp = stem + "self_attn.", stem + "mlp."
    layer: dict[str, str | list[str]] = {
        "layers.{layer}.input_layernorm.weight": stem + "input_layernorm.weight",
        "layers.{layer}.post_attention_layernorm.weight": stem + "post_attention_layernorm.weight",
    }
    kinds = [("weight", True), ("bias", config.attention_bias)]
    for kind in (name for name, exists in kinds if exists):
        layer[f"layers.{{layer}}.self_attn.qkv_proj.{kind}"] = [
            attention + f"{part}_proj.{kind}" for part in "qkv"
        ]
        layer[f"layers.{{layer}}.self_attn.o_proj.{kind}"] = attention + f"o_proj.{kind}"
    kinds = [("weight", True), ("bias", config.mlp_bias)]
    for kind in (name for name, exists in kinds if exists):
        for part in ("gate", "up", "down"):
            layer[f"layers.{{layer}}.mlp.{part}_{kind}"] = mlp + f"{part}_proj.{kind}"
    ends = {
        "embed_tokens.weight": tied.embedding_key,
        "norm.weight": "model.norm.weight",
        "lm_head.weight": tied.head_key,
    }
    return WeightMapping({**ends, **expand_layers(layer, config.num_hidden_layers)}, IGNORED)
