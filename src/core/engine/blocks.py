# SPDX-License-Identifier: Apache-2.0
"""The pool of free KV blocks, for engines that run without vLLM's block manager."""

from __future__ import annotations

from collections.abc import Iterable

from trnport.core.errors import CapacityError
from trnport.core.kv.slots import NULL_BLOCK


class BlockPool:
    """Hands out block ids from 1 up; block 0 stays the null block."""

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))

    @property
    def num_free(self) -> int:
        """Blocks left."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Remove ``count`` blocks from the pool.

        Raises:
            CapacityError: Fewer are left; none is taken.
        """
        if count > len(self._free):
            raise CapacityError(f"{count} KV blocks are needed, {len(self._free)} are free")
        return [self._free.pop() for _ in range(count)]

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Return blocks to the pool."""
        self._free.extend(block_ids)
