# SPDX-License-Identifier: Apache-2.0
"""The KV cache between vLLM's block manager and the core's caches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from trnport.core.errors import ConfigError
from trnport.core.kv import KVGroup, KVGroups
from trnport.core.kv.spec import KVSpec, LayerSpec

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

LAYOUT = "LBHNC"
"""vLLM's name for ``[blocks, heads, positions, dims]`` in each layer, which ours are."""


def vllm_specs(spec: KVSpec, block_size: int) -> dict[str, KVCacheSpec]:
    """Describe each layer's cache to vLLM's block manager.

    From these it makes groups of layers, and frees the blocks behind a window.

    Args:
        spec: What the model asks for.
        block_size: Positions per block.
    """
    return {layer.name: _vllm_spec(layer, block_size) for layer in spec.layers}


def groups_of(config: KVCacheConfig, block_size: int) -> KVGroups:
    """The groups of layers that vLLM decided on.

    With ``--disable-hybrid-kv-cache-manager`` it is one group that keeps all blocks.

    Raises:
        ConfigError: vLLM chose different block sizes, because layers' bytes differ.
    """
    sizes = sorted({group.kv_cache_spec.block_size for group in config.kv_cache_groups})
    if sizes != [block_size]:
        raise ConfigError(
            f"layers with {sizes} positions per KV block instead of {block_size} are not "
            "supported; use --disable-hybrid-kv-cache-manager"
        )
    return KVGroups(tuple(_group(group) for group in config.kv_cache_groups))


def _vllm_spec(layer: LayerSpec, block_size: int) -> KVCacheSpec:
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    size = {
        "block_size": block_size,
        "num_kv_heads": layer.num_kv_heads,
        "head_size": layer.head_size,
        "dtype": layer.dtype,
    }
    if layer.sliding_window is None:
        return FullAttentionSpec(**size)
    return SlidingWindowSpec(**size, sliding_window=layer.sliding_window)


def _group(group: Any) -> KVGroup:
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    spec = group.kv_cache_spec
    window = spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None
    return KVGroup(tuple(group.layer_names), window)


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
    # Layers that share memory must not be copied twice: a block may be source and destination.
    once = {k_cache.data_ptr(): (k_cache, v_cache) for k_cache, v_cache in caches.values()}
    for k_cache, v_cache in once.values():
        k_cache[destinations] = k_cache[sources]
        v_cache[destinations] = v_cache[sources]
