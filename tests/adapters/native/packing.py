# SPDX-License-Identifier: Apache-2.0
"""Kernels that pack every weight they are called with, as a loaded model has done once."""

from __future__ import annotations

from trnport.adapters.native import NativeKernels


def packing(base):
    """A set of native kernels for callers with plain weights."""

    class Packing(base):
        def qkv_proj(self, x, weight, bias=None):
            return super().qkv_proj(x, self.pack("qkv_proj", weight), bias)

        def o_proj(self, x, weight, bias=None):
            return super().o_proj(x, self.pack("o_proj", weight), bias)

        def linear(self, x, weight, bias=None):
            return super().linear(x, self.pack("linear", weight), bias)

        def mlp(self, x, gate, up, down, *biases):
            return super().mlp(x, *(self.pack("mlp", w) for w in (gate, up, down)), *biases)

    return Packing


PackingKernels = packing(NativeKernels)
