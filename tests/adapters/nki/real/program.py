# SPDX-License-Identifier: Apache-2.0
"""Small kernels that two simulators run: what they take, and how far results may be apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from trnport.adapters.nki.nki import nisa, nl

EXACT = 0.0
ROUNDING = 1e-6  # of the largest value: order of sums in fp32
APPROXIMATE = 1e-5  # functions that each simulator computes in its own way
BF16 = 1.6e-2  # two steps of bf16: a sum that falls on the other side of a tie


@attrs.frozen
class Program:
    """A kernel and its arguments.

    Attributes:
        kernel: A plain function of tensors and constants.
        arguments: Makes them, new ones at each call.
        tolerance: Largest max|a - b| / max|b| of each result.
        lnc: Cores that it is for.
        targets: Targets that it is for.
    """

    kernel: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    tolerance: float = EXACT
    lnc: tuple[int, ...] = (1, 2)
    targets: tuple[str, ...] = ("trn2", "trn3")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers of a shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(values: Any, dtype: torch.dtype = torch.int32) -> Tensor:
    """Numbers as a tensor of an integer dtype."""
    return torch.as_tensor(values).to(dtype)


def load(x: Any) -> Any:
    """A tensor of HBM, copied to SBUF."""
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def fresh(shape: tuple[int, ...], dtype: Any = nl.float32) -> Any:
    """A tile of SBUF that nothing wrote."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def store(tile: Any) -> Any:
    """A tile, copied to a result."""
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
