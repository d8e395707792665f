# SPDX-License-Identifier: Apache-2.0
"""The five ports: everything the core and the models ask of the outside world."""

from trnport.core.ports.collectives import Collectives
from trnport.core.ports.compiler import Compiler, Program
from trnport.core.ports.kernels import Kernels
from trnport.core.ports.kv_cache import KVCacheStore
from trnport.core.ports.weights import TensorInfo, TensorSlice, WeightSource

__all__ = [
    "Collectives",
    "Compiler",
    "KVCacheStore",
    "Kernels",
    "Program",
    "TensorInfo",
    "TensorSlice",
    "WeightSource",
]
