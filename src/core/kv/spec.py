# SPDX-License-Identifier: Apache-2.0
"""What each attention layer of a model asks of the KV cache."""

from __future__ import annotations

import attrs
import torch

DEFAULT_BLOCK_SIZE = 32
"""Positions per KV block: long enough for efficient reads of a block, short enough that
prefixes are shared and the last block of a request wastes little."""

_positive = attrs.validators.gt(0)


@attrs.frozen
class LayerSpec:
    """One attention layer on one rank.

    Attributes:
        name: Layer name, the key of attention metadata and of bound caches, such as
            "layers.0.self_attn".
        num_kv_heads: KV heads held by *this rank*, replicas included.
        head_size: Dimensions per head.
        dtype: Dtype of the cache.
        sliding_window: Latest positions a query sees, itself included; None for all.
    """

    name: str
    num_kv_heads: int = attrs.field(validator=_positive)
    head_size: int = attrs.field(validator=_positive)
    dtype: torch.dtype
    sliding_window: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_positive)
    )

    def bytes_per_token(self) -> int:
        """Bytes of one position's key and value in this layer."""
        return 2 * self.num_kv_heads * self.head_size * self.dtype.itemsize


@attrs.frozen
class KVSpec:
    """All attention layers of one rank's model, in order."""

    layers: tuple[LayerSpec, ...]

    def bytes_per_token(self) -> int:
        """Bytes of one position's keys and values over all layers."""
        return sum(layer.bytes_per_token() for layer in self.layers)
