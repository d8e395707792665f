# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that exist only in memory: given tensors, or random ones."""

from trnport.adapters.memory.random import RandomWeightSource
from trnport.adapters.memory.tensors import InMemoryWeightSource

__all__ = ["InMemoryWeightSource", "RandomWeightSource"]
