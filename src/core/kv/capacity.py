# SPDX-License-Identifier: Apache-2.0
"""Pure arithmetic: how many blocks, tokens and requests a rank's cache memory holds."""

from __future__ import annotations

from typing import Self

import attrs

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
    """

    budget_bytes: int = attrs.field(validator=attrs.validators.ge(0))
    bytes_per_block: int = attrs.field(validator=attrs.validators.gt(0))
    block_size: int = attrs.field(validator=attrs.validators.gt(0))

    @classmethod
    def of(cls, spec: KVSpec, *, block_size: int, budget_bytes: int) -> Self:
        """The capacity of ``budget_bytes`` for a model's layers."""
        return cls(budget_bytes, spec.bytes_per_token() * block_size, block_size)

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
        """Positions that requests can own: the longest single request."""
        return self.usable_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of one request of ``num_tokens`` tokens, at least 1."""
        return -(-num_tokens // self.block_size)

    def requests(self, num_tokens: int) -> int:
        """Requests of ``num_tokens`` tokens each that fit at the same time."""
        return self.usable_blocks // self.blocks_for(num_tokens)

    def bytes_for(self, requests: int, num_tokens: int) -> int:
        """The smallest budget that holds so many requests of ``num_tokens`` tokens each."""
        blocks = requests * self.blocks_for(num_tokens) + RESERVED_BLOCKS
        return blocks * self.bytes_per_block
