# SPDX-License-Identifier: Apache-2.0
"""Normalisation and rotary embedding."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square normalisation over the last dimension.

    Args:
        x: ``[..., H]``.
        weight: ``[H]``.
        eps: Added to the mean square.

    Returns:
        Shape of ``x``. The cast comes before the scaling: Transformers' order, and in bf16
        the two orders round differently.
    """
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * inverse).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + R/2) of the last dimension; the rest passes through.

    Args:
        x: ``[T, heads, D]``.
        cos: ``[T, 1, R/2]``. An fp32 table makes bf16 rotate in fp32.
        sin: Like ``cos``.

    Returns:
        Shape and dtype of ``x``.
    """
    half = cos.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat([part.to(x.dtype) for part in rotated] + [rest], dim=-1)
