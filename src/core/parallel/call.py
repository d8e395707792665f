# SPDX-License-Identifier: Apache-2.0
"""A collective call on record, for adapters that remember or compare what ranks did."""

from __future__ import annotations

import attrs
import torch


@attrs.frozen
class CollectiveCall:
    """One call of one rank, as recorded.

    Attributes:
        operation: Name of the operation, such as "all_reduce".
        group: Name of the group.
        shape: Shape of the input.
        dtype: Dtype of the input.
        options: The other arguments by name, such as ``{"dim": 0}``.
    """

    operation: str
    group: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    options: dict[str, int]

    def __str__(self) -> str:
        """The call as one would write it."""
        dtype = str(self.dtype).removeprefix("torch.")
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"{self.operation}({dtype}{list(self.shape)}{options}, group={self.group!r})"
