# SPDX-License-Identifier: Apache-2.0
"""Port: a checkpoint that is read lazily, slice by slice."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Protocol

import attrs
import torch
from torch import Tensor


@attrs.frozen
class TensorInfo:
    """Shape and dtype of a stored tensor, known without reading it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class TensorSlice(Protocol):
    """A stored tensor that reads only what is indexed.

    An index is a box: one contiguous slice (step 1) per leading dimension, the rest whole.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole stored tensor."""

    @property
    def dtype(self) -> torch.dtype:
        """Stored dtype."""

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Tensor:
        """Read a box into a tensor of its own."""

    def read_into(self, index: slice | tuple[slice, ...], out: Tensor) -> None:
        """Read a box to where it is wanted.

        Args:
            index: The box.
            out: Gets it, cast to its own dtype. It has the box's shape and any strides, so that
                a transposed part of a larger tensor can be filled.
        """

    def announce(self, index: slice | tuple[slice, ...]) -> None:
        """Say that a box will be read soon, which may start the transfer. Returns at once."""


class WeightSource(abc.ABC):
    """Named tensors of one checkpoint."""

    @abc.abstractmethod
    def names(self) -> Sequence[str]:
        """Names of all tensors, sorted."""

    @abc.abstractmethod
    def info(self, name: str) -> TensorInfo:
        """Shape and dtype without reading the tensor. KeyError when there is no such tensor."""

    @abc.abstractmethod
    def open(self, name: str) -> TensorSlice:
        """A lazy view of one tensor. KeyError when there is no such tensor."""
