# SPDX-License-Identifier: Apache-2.0
"""Refusals that every Collectives adapter shares, made before any rank waits for another."""

from __future__ import annotations

from torch import Tensor


def check_divisible(operation: str, x: Tensor, dim: int, size: int, group: str) -> None:
    """Refuse a dimension that does not split evenly over a group.

    Raises:
        ValueError: Names the dimension, its size and the group's.
    """
    if x.shape[dim] % size:
        raise ValueError(
            f"{operation} over group {group!r}: dimension {dim} has {x.shape[dim]} entries, "
            f"not a multiple of the group's {size} ranks"
        )


def check_source(source: int, size: int, group: str) -> None:
    """Refuse a broadcast from outside the group.

    Raises:
        ValueError: Names the source and the group's size.
    """
    if not 0 <= source < size:
        raise ValueError(f"broadcast source {source} is not a rank of {group!r} (size {size})")
