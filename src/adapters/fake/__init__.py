# SPDX-License-Identifier: Apache-2.0
"""Public fakes of all five ports, for tests of models, of engines and of other adapters.

A fake that needs something computed wraps an adapter that the test gives it, so that it can
stand around any of them.
"""

from trnport.adapters.fake.collectives import FakeCollectives
from trnport.adapters.fake.compiler import CompilerRecord, RecordingCompiler
from trnport.adapters.fake.errors import ContractViolationError
from trnport.adapters.fake.kernels import (
    KernelCall,
    PoisoningKernels,
    RecordingKernels,
    StrictKernels,
)
from trnport.adapters.fake.kv_cache import StrictKVCacheStore
from trnport.adapters.fake.observer import RecordingObserver
from trnport.adapters.fake.weights import RecordingWeightSource
from trnport.adapters.fake.wrapping import WrappedKernels
from trnport.core.parallel.call import CollectiveCall

__all__ = [
    "CollectiveCall",
    "CompilerRecord",
    "ContractViolationError",
    "FakeCollectives",
    "KernelCall",
    "PoisoningKernels",
    "RecordingCompiler",
    "RecordingKernels",
    "RecordingObserver",
    "RecordingWeightSource",
    "StrictKVCacheStore",
    "StrictKernels",
    "WrappedKernels",
]
