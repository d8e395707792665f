# SPDX-License-Identifier: Apache-2.0
"""Pure arithmetic: which part of a weight a tensor-parallel rank holds."""

from __future__ import annotations

import math

import attrs

from trnport.core.errors import ConfigError


def padded_shard_size(size: int, num_shards: int) -> int:
    """Entries per shard when ``size`` is padded up to a multiple of ``num_shards``."""
    return -(-size // num_shards)


def shard_range(size: int, num_shards: int, shard: int) -> tuple[int, int]:
    """Real entries [start, stop) of one padded shard; empty when the shard is all padding."""
    shard_size = padded_shard_size(size, num_shards)
    start = min(shard * shard_size, size)
    return start, min(start + shard_size, size)


@attrs.frozen
class HeadSharding:
    """Grouped-query attention heads over tensor-parallel ranks.

    Each rank holds ``num_heads / tp`` consecutive query heads and every KV head that they
    read, arranged so that local query head h reads local KV head ``h // local_group``.
    When ``tp`` divides the KV heads, or is a multiple of them, that is the usual split or
    replication. In between (3 ranks, 6 heads, 2 KV heads) a rank's query heads straddle a KV
    head; local groups then shrink to the greatest common divisor and a KV head can appear
    more than once on a rank, which costs cache memory but keeps every rank's shape equal.

    Attributes:
        num_heads: Query heads of the model.
        num_kv_heads: KV heads of the model; divides ``num_heads``.
        tp: Tensor-parallel degree; divides ``num_heads``.
    """

    num_heads: int
    num_kv_heads: int
    tp: int

    def __attrs_post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_key_value_heads={self.num_kv_heads} does not divide "
                f"num_attention_heads={self.num_heads}; fix the model's config.json"
            )
        if self.num_heads % self.tp:
            valid = [d for d in range(1, self.num_heads + 1) if self.num_heads % d == 0]
            raise ConfigError(
                f"tensor_parallel_size={self.tp} does not divide the model's "
                f"{self.num_heads} query heads; choose one of {valid}"
            )

    @property
    def heads_per_rank(self) -> int:
        """Query heads on each rank."""
        return self.num_heads // self.tp

    @property
    def local_group(self) -> int:
        """Query heads that share one local KV head."""
        return math.gcd(self.heads_per_rank, self.num_heads // self.num_kv_heads)

    @property
    def kv_heads_per_rank(self) -> int:
        """KV heads on each rank, replicas included."""
        return self.heads_per_rank // self.local_group

    def kv_heads(self, rank: int) -> list[int]:
        """The model's KV head behind each local KV head of ``rank``."""
        group = self.num_heads // self.num_kv_heads
        first = rank * self.heads_per_rank
        return [(first + i * self.local_group) // group for i in range(self.kv_heads_per_rank)]
