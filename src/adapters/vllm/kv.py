# SPDX-License-Identifier: Apache-2.0
"""The KV cache between vLLM's block manager and the core's caches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from trnport.core.kv.spec import KVSpec

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheSpec

LAYOUT = "LBHNC"
"""vLLM's name for ``[blocks, heads, positions, dims]`` in each layer, which ours are."""


def vllm_specs(spec: KVSpec, block_size: int) -> dict[str, KVCacheSpec]:
    """Describe each layer's cache to vLLM's block manager.

    Sliding-window layers keep all their blocks for now: one group of blocks serves all layers.

    Args:
        spec: What the model asks for.
        block_size: Positions per block.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return {
        layer.name: FullAttentionSpec(
            block_size=block_size,
            num_kv_heads=layer.num_kv_heads,
            head_size=layer.head_size,
            dtype=layer.dtype,
            sliding_window=layer.sliding_window,
        )
        for layer in spec.layers
    }


def copy_blocks(caches: Mapping[str, list[Tensor]], copies: Iterable[tuple[int, int]]) -> None:
    """Copy whole blocks in every layer.

    vLLM asks for it before a request writes into a block that it shares with another one.

    Args:
        caches: Layer name to ``[k_cache, v_cache]``, each ``[num_blocks, ...]``.
        copies: (source block, destination block).
    """
    pairs = list(copies)
    if not pairs:
        return
    sources = [source for source, _ in pairs]
    destinations = [destination for _, destination in pairs]
    for k_cache, v_cache in caches.values():
        k_cache[destinations] = k_cache[sources]
        v_cache[destinations] = v_cache[sources]
