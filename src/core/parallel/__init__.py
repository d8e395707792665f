# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks and the arithmetic of sharding over them."""

from trnport.core.parallel.group import Group
from trnport.core.parallel.sharding import HeadSharding, padded_shard_size, shard_range

__all__ = ["Group", "HeadSharding", "padded_shard_size", "shard_range"]
