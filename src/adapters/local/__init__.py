# SPDX-License-Identifier: Apache-2.0
"""Collectives inside one process: one rank, or several as threads."""

from trnport.adapters.local.errors import CollectiveMismatchError, RankAbortedError
from trnport.adapters.local.single import SingleCollectives
from trnport.adapters.local.world import LocalCollectives, LocalWorld
from trnport.core.parallel.call import CollectiveCall

__all__ = [
    "CollectiveCall",
    "CollectiveMismatchError",
    "LocalCollectives",
    "LocalWorld",
    "RankAbortedError",
    "SingleCollectives",
]
