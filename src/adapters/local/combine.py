# SPDX-License-Identifier: Apache-2.0
"""What each collective makes of the tensors of all ranks. Results are new tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trnport.core.parallel.checks import check_divisible, check_source

__all__ = [
    "check_divisible",
    "check_source",
    "exchanged",
    "gathered",
    "scattered_sum",
    "share",
    "summed",
]


def summed(parts: Sequence[Tensor]) -> Tensor:
    """Sum in rank order, so that every run and every rank gets the same bits."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def share(x: Tensor, dim: int, size: int, rank: int) -> Tensor:
    """The equal share of ``dim`` that belongs to ``rank``, a view."""
    return x.tensor_split(size, dim)[rank]


def gathered(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenation in rank order."""
    return torch.cat(list(parts), dim)


def scattered_sum(parts: Sequence[Tensor], dim: int, rank: int) -> Tensor:
    """This rank's share of the sum."""
    return summed([share(part, dim, len(parts), rank) for part in parts])


def exchanged(parts: Sequence[Tensor], split_dim: int, concat_dim: int, rank: int) -> Tensor:
    """The shares that all ranks send to this one, in their order."""
    return gathered([share(part, split_dim, len(parts), rank) for part in parts], concat_dim)
