# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trnport.core.context import ModelContext
from trnport.core.nn.parameter import parameter


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension (Zhang and Sennrich, 2019); replicated on every rank."""

    def __init__(self, size: int, eps: float, ctx: ModelContext, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = parameter(size, dtype=dtype)
        self.eps = eps
        self.kernels = ctx.kernels

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[..., size]``."""
        return self.kernels.rms_norm(x, self.weight, self.eps)
