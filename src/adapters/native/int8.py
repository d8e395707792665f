# SPDX-License-Identifier: Apache-2.0
"""The native kernels with linear weights of 8 bits, which a decode step reads in half the time."""

from __future__ import annotations

import torch
from torch import Tensor

from trnport.adapters.native.kernels import NativeKernels


class NativeInt8Kernels(NativeKernels):
    """Native kernels that round each linear weight to one of 255 steps of its output column.

    Activations, sums and the KV cache stay what they are.
    """

    name = "native_int8"

    def pack(self, operator: str, weight: Tensor) -> Tensor:
        """Blocks of 32 columns, int8: their fp32 scales, then pairs of rows as ``native`` has them.

        A column's scale is its largest magnitude divided by 127. What ``native`` does not pack is
        not rounded either.

        Returns:
            ``[out / 32, 128 + in * 32]``; or ``weight`` itself.
        """
        del operator
        if not self._can_pack(weight):
            return weight
        packed: Tensor = torch.ops.trnport_native.pack_int8(weight)
        return packed
