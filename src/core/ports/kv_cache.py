# SPDX-License-Identifier: Apache-2.0
"""Port: paged caches of keys and values."""

from __future__ import annotations

import abc

from torch import Tensor

from trnport.core.kv.groups import KVGroups
from trnport.core.kv.spec import KVSpec


class KVCacheStore(abc.ABC):
    """Allocates the caches of one rank.

    Block 0 is the null block: no request ever owns or writes it. The *model* writes the
    caches through its slot mapping; the store and the engine never do.
    """

    @abc.abstractmethod
    def allocate(
        self, spec: KVSpec, num_blocks: int, block_size: int, groups: KVGroups | None = None
    ) -> dict[str, list[Tensor]]:
        """Allocate ``[num_blocks, kv_heads, block_size, head_size]`` K and V for each layer.

        Args:
            spec: What each layer of this rank needs.
            num_blocks: Blocks per layer, the null block included; at least 2.
            block_size: Positions per block.
            groups: Which layers share memory, see :class:`KVGroups`; no two when None.

        Returns:
            Layer name to ``[k_cache, v_cache]``, for ``model.bind_kv_cache``. Layers that share
            memory get the same tensors. The memory may hold anything, NaN included.

        Raises:
            ConfigError: A size is out of range.
            CapacityError: The memory is not there; the message says how many blocks are.
        """

    @abc.abstractmethod
    def bytes_per_block(self, spec: KVSpec, block_size: int, groups: KVGroups | None = None) -> int:
        """Bytes that one block costs on this rank, keys and values, shared memory once."""

    @abc.abstractmethod
    def allocated_bytes(self) -> int:
        """Bytes of all caches allocated so far."""
