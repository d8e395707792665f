# SPDX-License-Identifier: Apache-2.0
"""A WeightSource over tensors that are already there, such as a state dict."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from trnport.core.ports.weights import TensorInfo, TensorSlice, WeightSource
from trnport.core.weights import resolve_box, unknown_tensor


@attrs.frozen(eq=False)
class InMemorySlice:
    """A lazy view of one tensor; every read is a copy that the caller owns."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""
        return self.tensor.dtype

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Tensor:
        """Copy a box; IndexError when it leaves the tensor."""
        box = resolve_box(index, self.shape)
        part = self.tensor[tuple(slice(*edges) for edges in box)]
        return part.clone(memory_format=torch.contiguous_format)

    def read_into(self, index: slice | tuple[slice, ...], out: Tensor) -> None:
        """Copy a box to where it is wanted; IndexError when it leaves the tensor."""
        box = resolve_box(index, self.shape)
        out.copy_(self.tensor[tuple(slice(*edges) for edges in box)])

    def announce(self, index: slice | tuple[slice, ...]) -> None:
        """Everything is in memory already."""


class InMemoryWeightSource(WeightSource):
    """Named tensors held in memory, of any shapes and dtypes."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: tensors[name].detach() for name in sorted(tensors)}

    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return list(self._tensors)

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype. KeyError when there is no such tensor."""
        tensor = self._find(name)
        return TensorInfo(tuple(tensor.shape), tensor.dtype)

    def open(self, name: str) -> TensorSlice:
        """A lazy view. KeyError when there is no such tensor."""
        return InMemorySlice(self._find(name))

    def _find(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise unknown_tensor(name, self.names()) from None
