# SPDX-License-Identifier: Apache-2.0
"""A KVCacheStore of plain torch tensors."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from trnport.core.errors import CapacityError, ConfigError
from trnport.core.kv.groups import KVGroups
from trnport.core.kv.spec import KVSpec, LayerSpec
from trnport.core.ports.kv_cache import KVCacheStore


class PagedKVCacheStore(KVCacheStore):
    """Contiguous ``[num_blocks, kv_heads, block_size, head_size]`` tensors per layer.

    Args:
        device: Where the caches live.
        fill: Initial content of floating-point caches, other dtypes start at 0; None leaves
            whatever the memory holds, since writing gigabytes takes seconds. Tests give NaN,
            so that reading what nobody wrote shows in the output.
        budget_bytes: Most bytes that all caches of this store may take; None leaves the
            decision to the machine.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        *,
        fill: float | None = None,
        budget_bytes: int | None = None,
    ) -> None:
        if budget_bytes is not None and budget_bytes < 0:
            raise ConfigError(f"budget_bytes must not be negative, got {budget_bytes}")
        self._device = torch.device(device)
        self._fill = fill
        self._budget = budget_bytes
        self._allocated = 0

    def allocate(
        self, spec: KVSpec, num_blocks: int, block_size: int, groups: KVGroups | None = None
    ) -> dict[str, list[Tensor]]:
        """Allocate every layer's caches, or none; see the port for shapes and errors."""
        _check_sizes(spec, num_blocks, block_size)
        per_block = self.bytes_per_block(spec, block_size, groups)
        self._check_budget(num_blocks, per_block)
        caches: dict[str, list[Tensor]] = {}
        granted = 0
        try:
            for sharing in (groups or KVGroups.single(spec)).shared(spec):
                pair = [self._cache(sharing[0], num_blocks, block_size) for _ in "kv"]
                caches |= {layer.name: pair for layer in sharing}
                granted += num_blocks * block_size * sharing[0].bytes_per_token()
        except (RuntimeError, MemoryError) as error:  # torch raises its OutOfMemoryError, or this
            raise CapacityError(
                f"{num_blocks} KV blocks of {per_block} bytes each do not fit on {self._device}; "
                f"{granted // per_block} blocks would have. Lower the number of blocks"
            ) from error
        self._allocated += granted
        return {layer.name: caches[layer.name] for layer in spec.layers}

    def bytes_per_block(self, spec: KVSpec, block_size: int, groups: KVGroups | None = None) -> int:
        """Bytes of one block over all layers, shared memory once."""
        return (groups or KVGroups.single(spec)).bytes_per_block(spec, block_size)

    def allocated_bytes(self) -> int:
        """Bytes handed out so far."""
        return self._allocated

    def _check_budget(self, num_blocks: int, per_block: int) -> None:
        if self._budget is None:
            return
        fitting = (self._budget - self._allocated) // per_block
        if num_blocks > fitting:
            raise CapacityError(
                f"{num_blocks} KV blocks of {per_block} bytes each exceed the budget of "
                f"{self._budget} bytes ({self._allocated} in use): {fitting} blocks fit. "
                "Lower the number of blocks or raise the budget"
            )

    def _cache(self, layer: LayerSpec, num_blocks: int, block_size: int) -> Tensor:
        shape = (num_blocks, layer.num_kv_heads, block_size, layer.head_size)
        cache = torch.empty(shape, dtype=layer.dtype, device=self._device)
        if self._fill is not None:
            cache.fill_(self._fill if layer.dtype.is_floating_point else 0)
        return cache


def _check_sizes(spec: KVSpec, num_blocks: int, block_size: int) -> None:
    if num_blocks < 2:
        raise ConfigError(f"num_blocks must be at least 2 (block 0 is reserved), got {num_blocks}")
    if block_size < 1:
        raise ConfigError(f"block_size must be at least 1, got {block_size}")
    if not spec.layers:
        raise ConfigError("the KV spec has no layer, so there is no cache to allocate")
    counts = Counter(layer.name for layer in spec.layers)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise ConfigError(f"layer names must be unique in a KV spec, repeated: {repeated}")
