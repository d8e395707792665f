# SPDX-License-Identifier: Apache-2.0
"""Parameters that know how they are read from a checkpoint."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import nn

from trnport.core.ports.kernels import Kernels
from trnport.core.weights import WeightLoader, set_weight_loader


@runtime_checkable
class _Packable(Protocol):
    def pack_weights(self) -> None: ...


def pack(module: nn.Module, kernels: Kernels, operator: str, *names: str) -> None:
    """Replace linear weights of a module by what an operator reads fastest.

    Args:
        module: Holds the weights.
        kernels: Orders them; see :meth:`trnport.core.ports.kernels.Kernels.pack`.
        operator: The operator that reads them.
        names: Attributes of the module, each ``[in, out]``.
    """
    for name in names:
        weight = getattr(module, name)
        packed = kernels.pack(operator, weight.detach())
        if packed.shape != weight.shape:
            setattr(module, name, nn.Parameter(packed, requires_grad=False))


def pack_weights(model: nn.Module) -> None:
    """Pack the linear weights of all parts of a loaded model that say how: ``pack_weights()``."""
    for module in model.modules():
        if isinstance(module, _Packable):
            module.pack_weights()


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
