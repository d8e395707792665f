# SPDX-License-Identifier: Apache-2.0
"""Pure arithmetic: how many blocks, tokens and requests a rank's cache memory holds."""

from __future__ import annotations

from bisect import bisect_right
from typing import Self

import attrs

from trnport.core.kv.groups import KVGroup, KVGroups
from trnport.core.kv.spec import KVSpec

RESERVED_BLOCKS = 1
"""The null block, which no request can own."""


@attrs.frozen
class KVCapacity:
    """A rank's cache memory, divided into blocks.

    Attributes:
        budget_bytes: Memory for the cache.
        bytes_per_block: Bytes of one block over all layers.
        block_size: Positions per block.
        groups: A request owns blocks in each of them.
        tokens_in_flight: Most tokens that are scheduled and not yet computed; a group with a
            window holds their blocks on top of its window.
    """

    budget_bytes: int = attrs.field(validator=attrs.validators.ge(0))
    bytes_per_block: int = attrs.field(validator=attrs.validators.gt(0))
    block_size: int = attrs.field(validator=attrs.validators.gt(0))
    groups: tuple[KVGroup, ...] = (KVGroup(()),)
    tokens_in_flight: int = 0

    @classmethod
    def of(
        cls,
        spec: KVSpec,
        *,
        block_size: int,
        budget_bytes: int,
        groups: KVGroups | None = None,
        tokens_in_flight: int = 0,
    ) -> Self:
        """The capacity of ``budget_bytes`` for a model's layers, in one group when None."""
        groups = groups or KVGroups.single(spec)
        per_block = groups.bytes_per_block(spec, block_size)
        return cls(budget_bytes, per_block, block_size, groups.groups, tokens_in_flight)

    @property
    def num_blocks(self) -> int:
        """Blocks that fit, the null block included."""
        return self.budget_bytes // self.bytes_per_block

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can own."""
        return max(0, self.num_blocks - RESERVED_BLOCKS)

    @property
    def tokens(self) -> int:
        """The longest single request, as far as there are positions for all of its tokens."""
        lengths = range(1, self.usable_blocks * self.block_size + 1)
        return bisect_right(lengths, self.usable_blocks, key=self.blocks_for)

    def blocks_for(self, num_tokens: int) -> int:
        """Most blocks that one request of ``num_tokens`` tokens owns at a time, at least 1."""
        return sum(
            group.blocks_for(num_tokens, self.block_size, self.tokens_in_flight)
            for group in self.groups
        )

    def requests(self, num_tokens: int) -> int:
        """Requests of ``num_tokens`` tokens each that fit at the same time."""
        return self.usable_blocks // self.blocks_for(num_tokens)

    def bytes_for(self, requests: int, num_tokens: int) -> int:
        """The smallest budget that holds so many requests of ``num_tokens`` tokens each."""
        blocks = requests * self.blocks_for(num_tokens) + RESERVED_BLOCKS
        return blocks * self.bytes_per_block
