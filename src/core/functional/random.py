# SPDX-License-Identifier: Apache-2.0
"""Random numbers computed from a counter, so that a draw depends on nothing around it."""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27)
_LAST_SHIFT = 31
_MASK = 2**64 - 1


def mix(value: int) -> int:
    """The output function of SplitMix64 (Steele et al., 2014): 64 bits to 64 bits."""
    value &= _MASK
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=True):
        value = ((value ^ (value >> shift)) * multiplier) & _MASK
    return value ^ (value >> _LAST_SHIFT)


def split(state: int, count: int) -> int:
    """Number ``count`` of the SplitMix64 generator that starts at ``state``.

    Args:
        state: Any integer; its low 64 bits count.
        count: From 0.

    Returns:
        From 0 to 2**64 - 1.
    """
    return mix(state + (count + 1) * _GOLDEN)


def signed(value: int) -> int:
    """The 64-bit pattern of ``value`` as a signed integer, as int64 tensors hold it."""
    value &= _MASK
    return value - 2**64 if value >= 2**63 else value


def mix_bits(values: Tensor) -> Tensor:
    """:func:`mix` of each value; int64 bit patterns of any shape."""
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=True):
        values = (values ^ _logical_shift(values, shift)) * signed(multiplier)  # wraps around
    return values ^ _logical_shift(values, _LAST_SHIFT)


def split_each(states: Tensor, counts: Tensor) -> Tensor:
    """:func:`split` of each state at the count in its place; both int64, of shapes that match."""
    return mix_bits(states + (counts + 1) * signed(_GOLDEN))  # int64 wraps around


def split_rows(keys: Tensor, counts: Tensor) -> Tensor:
    """:func:`split` of every key at every count.

    Args:
        keys: ``[B]`` int64, bit patterns.
        counts: ``[C]`` int64.

    Returns:
        ``[B, C]`` int64, bit patterns.
    """
    return split_each(keys[:, None], counts[None, :])


def gumbel(keys: Tensor, counts: Tensor) -> Tensor:
    """Standard Gumbel noise of every key at every count.

    Args:
        keys: ``[B]`` int64.
        counts: ``[C]`` int64.

    Returns:
        ``[B, C]`` fp32, finite, from about -2.8 to 37.
    """
    uniform = _logical_shift(split_rows(keys, counts), 11).float() * 2.0**-53
    # The largest values come from uniforms near 0, where fp32 is finest: equal noise for two
    # tokens of a large vocabulary is then as unlikely as it should be.
    exponential = -torch.log1p(-uniform.clamp(2.0**-54, 1 - 2.0**-24))
    return -torch.log(exponential)


def _logical_shift(value: Tensor, bits: int) -> Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)
