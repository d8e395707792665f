# SPDX-License-Identifier: Apache-2.0
"""Kernels in C++ for the host's CPU: packed bf16 weights, attention that reads the cache in place.

What they cannot take is computed by the set they are given. ``docs/decisions.md`` says what was
measured before there was any C++ here.
"""

from trnport.adapters.native.int8 import NativeInt8Kernels
from trnport.adapters.native.kernels import NativeKernels
from trnport.adapters.native.library import load

__all__ = ["SETS", "NativeInt8Kernels", "NativeKernels", "load"]

SETS = {kind.name: kind for kind in (NativeKernels, NativeInt8Kernels)}
"""By the name that a setting has for them."""
