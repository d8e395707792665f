# SPDX-License-Identifier: Apache-2.0
"""KV cache bookkeeping: what layers need, and where each token's entry goes."""

from trnport.core.kv.groups import KVGroup, KVGroups
from trnport.core.kv.slots import NULL_BLOCK, PAD_SLOT, slot_mapping
from trnport.core.kv.spec import DEFAULT_BLOCK_SIZE, KVSpec, LayerSpec

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "NULL_BLOCK",
    "PAD_SLOT",
    "KVGroup",
    "KVGroups",
    "KVSpec",
    "LayerSpec",
    "slot_mapping",
]
