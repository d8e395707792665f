# SPDX-License-Identifier: Apache-2.0
"""Integers of Python in tensors, without a pass over the numbers by torch.

Each tensor owns memory of its own: the inputs of one step may still be read, by a device or
another thread, while those of the next are built.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import torch
from torch import Tensor


def int32(values: Iterable[int]) -> Tensor:
    """``[n]`` int32 of n values, at least one; shares the memory of a packed array.

    Raises:
        OverflowError: A value does not fit.
    """
    packed = values if isinstance(values, array) else array("i", values)
    return torch.frombuffer(packed, dtype=torch.int32)


def int64(values: Iterable[int]) -> Tensor:
    """``[n]`` int64 of n values, at least one.

    Raises:
        OverflowError: A value does not fit.
    """
    return torch.frombuffer(array("q", values), dtype=torch.int64)


def bits64(values: Iterable[int]) -> Tensor:
    """``[n]`` int64 with the bit patterns of n values from 0 to 2**64 - 1, at least one.

    Raises:
        OverflowError: A value does not fit.
    """
    return torch.frombuffer(array("Q", values), dtype=torch.int64)


def float32(values: Iterable[float]) -> Tensor:
    """``[n]`` fp32 of n values, at least one."""
    return torch.frombuffer(array("f", values), dtype=torch.float32)
