# SPDX-License-Identifier: Apache-2.0
"""Parameters that know how they are read from a checkpoint."""

from __future__ import annotations

import torch
from torch import nn

from trnport.core.weights import WeightLoader, set_weight_loader


def parameter(*shape: int, dtype: torch.dtype, loader: WeightLoader | None = None) -> nn.Parameter:
    """An uninitialised inference parameter, on the meta device inside a meta context.

    Args:
        shape: Shape of this rank's share.
        dtype: Dtype.
        loader: How the share is read; None reads the stored tensor unchanged.
    """
    param = nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
    if loader is not None:
        set_weight_loader(param, loader)
    return param
