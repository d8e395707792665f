# SPDX-License-Identifier: Apache-2.0
"""How a model's parameters are filled from a checkpoint, each rank reading its own share.

A model attaches a :class:`WeightLoader` to each parameter and names the checkpoint tensors
behind it in a :class:`WeightMapping`; :func:`load_weights` does the rest.
"""

from trnport.core.weights.boxes import resolve_box, unknown_tensor
from trnport.core.weights.heads import fused_qkv_weight_loader, gqa_qkv_weight_loader
from trnport.core.weights.load import checkpoint_shapes, load_weights
from trnport.core.weights.loader import (
    SafetensorsWeightLoader,
    WeightLoader,
    first_rank_weight_loader,
    get_weight_loader,
    set_weight_loader,
    with_rank_override,
)
from trnport.core.weights.mapping import WeightMapping, expand_layers
from trnport.core.weights.sharding import (
    sharding_weight_loader,
    sharding_weight_loader_with_padding,
    transposed_weight_loader,
)
from trnport.core.weights.tied import TiedEmbeddings, resolve_tied_embeddings

__all__ = [
    "SafetensorsWeightLoader",
    "TiedEmbeddings",
    "WeightLoader",
    "WeightMapping",
    "checkpoint_shapes",
    "expand_layers",
    "first_rank_weight_loader",
    "fused_qkv_weight_loader",
    "get_weight_loader",
    "gqa_qkv_weight_loader",
    "load_weights",
    "resolve_box",
    "resolve_tied_embeddings",
    "set_weight_loader",
    "sharding_weight_loader",
    "sharding_weight_loader_with_padding",
    "transposed_weight_loader",
    "unknown_tensor",
    "with_rank_override",
]
