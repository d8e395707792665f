# SPDX-License-Identifier: Apache-2.0
"""A KV cache that knows which of its slots were ever written."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from trnport.adapters.fake.errors import ContractViolationError
from trnport.core.errors import ConfigError
from trnport.core.kv.groups import KVGroups
from trnport.core.kv.slots import NULL_BLOCK
from trnport.core.kv.spec import KVSpec
from trnport.core.ports.kv_cache import KVCacheStore

_POISON = 0xFF
"""Each byte of an unwritten slot. All ones is NaN in every floating-point dtype, and a NaN
that arithmetic does not produce."""


class StrictKVCacheStore(KVCacheStore):
    """Starts as NaN; tells what was written, and whether it should have been.

    The model writes the tensors directly, so a store cannot stop a bad write: use
    :class:`StrictKernels` to raise at the call, and :meth:`check` after a step to catch what
    went past the kernels.

    >>> import torch
    >>> from trnport.core.kv import KVSpec, LayerSpec
    >>> spec = KVSpec((LayerSpec("layers.0.self_attn", 1, 4, torch.float32),))
    >>> store = StrictKVCacheStore()
    >>> k_cache, v_cache = store.allocate(spec, num_blocks=3, block_size=2)["layers.0.self_attn"]
    >>> k_cache[1, :, 1] = 0.5
    >>> store.written_slots("layers.0.self_attn")
    {3}
    >>> store.check(owned_blocks={2})
    Traceback (most recent call last):
    ...
    trnport.adapters.fake.errors.ContractViolationError: layers.0.self_attn: slots [3] of ...
    """

    def __init__(self) -> None:
        self._layers: dict[str, list[Tensor]] = {}

    def allocate(
        self, spec: KVSpec, num_blocks: int, block_size: int, groups: KVGroups | None = None
    ) -> dict[str, list[Tensor]]:
        """Allocate poisoned caches; a layer can be allocated once."""
        if num_blocks < 2 or block_size < 1:
            raise ConfigError(
                f"num_blocks must be at least 2 and block_size at least 1, "
                f"got {num_blocks} and {block_size}"
            )
        names = [layer.name for layer in spec.layers]
        if len({*names, *self._layers}) != len(names) + len(self._layers) or not names:
            raise ConfigError(f"layers must be new and unique, and at least one, got {names}")
        caches: dict[str, list[Tensor]] = {}
        for sharing in (groups or KVGroups.single(spec)).shared(spec):
            layer = sharing[0]
            shape = (num_blocks, layer.num_kv_heads, block_size, layer.head_size)
            pair = [_poisoned(shape, layer.dtype) for _ in "kv"]
            caches |= {layer.name: pair for layer in sharing}
        caches = {name: caches[name] for name in names}
        self._layers |= caches
        return caches

    def bytes_per_block(self, spec: KVSpec, block_size: int, groups: KVGroups | None = None) -> int:
        """Bytes of one block over all layers, shared memory once."""
        return (groups or KVGroups.single(spec)).bytes_per_block(spec, block_size)

    def allocated_bytes(self) -> int:
        """Bytes of all caches, shared memory once."""
        caches = {id(cache): cache for pair in self._layers.values() for cache in pair}
        return sum(cache.nbytes for cache in caches.values())

    def written_slots(self, layer: str) -> set[int]:
        """Slots of a layer whose key or value is no longer all poison."""
        written = torch.stack([_written(cache) for cache in self._layers[layer]]).any(0)
        return set(written.flatten().nonzero().flatten().tolist())

    def check(self, owned_blocks: Collection[int] | None = None) -> None:
        """Compare with the poison, byte by byte.

        Args:
            owned_blocks: Blocks that requests have owned; None allows all but block 0.

        Raises:
            ContractViolationError: Something was written to block 0, or to a block nobody
                owned; names the layer, the slots and the blocks.
        """
        for layer, (k_cache, _) in self._layers.items():
            block_size = k_cache.shape[2]
            allowed = range(1, len(k_cache)) if owned_blocks is None else owned_blocks
            slots = sorted(self.written_slots(layer))
            stray = [s for s in slots if s // block_size not in allowed]
            stray += [s for s in slots if s // block_size == NULL_BLOCK and s not in stray]
            if stray:
                blocks = sorted({slot // block_size for slot in stray})
                raise ContractViolationError(
                    f"{layer}: slots {stray} of blocks {blocks} were written; "
                    f"the blocks in use are {sorted(set(allowed) - {NULL_BLOCK})}"
                )


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.full((size,), _POISON, dtype=torch.uint8).view(dtype).view(shape)


def _written(cache: Tensor) -> Tensor:
    """``[N, S]`` bool."""
    return (cache.view(torch.uint8) != _POISON).any(dim=3).any(dim=1)
