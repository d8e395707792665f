# SPDX-License-Identifier: Apache-2.0
"""Where the sharded dimension of a parameter lies in its stored tensor."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from trnport.core.errors import CheckpointError, ConfigError
from trnport.core.ports.weights import TensorSlice
from trnport.core.weights.loader import Shape


@attrs.frozen
class ShardLayout:
    """A sharded dimension, seen from the parameter and from the stored tensor.

    Attributes:
        dim: Dimension of the *parameter*, as the model sees it; negative counts from the end.
        transposed: The last two dimensions are swapped in the stored tensor: parameters are
            ``[in, out]`` where Hugging Face checkpoints hold ``[out, in]``.
    """

    dim: int
    transposed: bool

    def stored_dim(self, ndim: int) -> int:
        """The sharded dimension of a stored tensor with ``ndim`` dimensions.

        Raises:
            CheckpointError: A tensor with so few dimensions has no such dimension.
        """
        dim = self.dim + ndim if self.dim < 0 else self.dim
        if not 0 <= dim < ndim or (self.transposed and ndim < 2):
            swapped = " of a transposed tensor" if self.transposed else ""
            raise CheckpointError(f"no dimension {self.dim}{swapped} in {ndim} dimension(s)")
        if self.transposed and dim >= ndim - 2:
            return 2 * ndim - 3 - dim
        return dim

    def stored_shape(self, parameter: Shape, share: int, full: int) -> Shape:
        """Full shape of the stored tensor behind a parameter.

        Args:
            parameter: Shape of one rank's parameter.
            share: Size that the loader gives the parameter's sharded dimension.
            full: Size of that dimension over all ranks.

        Raises:
            ConfigError: The parameter has another size, or no such dimension.
        """
        ndim = len(parameter)
        try:
            dim = self.stored_dim(ndim)
        except CheckpointError as error:
            raise ConfigError(str(error)) from None
        stored = list(parameter)
        if self.transposed:
            stored[-2:] = reversed(stored[-2:])
        if stored[dim] != share:
            raise ConfigError(
                f"dimension {self.dim} holds {stored[dim]}, but the loader fills {share}"
            )
        stored[dim] = full
        return tuple(stored)

    def check(self, stored: TensorSlice, full: int) -> None:
        """Refuse a stored tensor whose sharded dimension does not hold ``full`` entries.

        Raises:
            CheckpointError: It holds more or fewer.
        """
        dim = self.stored_dim(len(stored.shape))
        if stored.shape[dim] != full:
            raise CheckpointError(
                f"stored dimension {dim} holds {stored.shape[dim]}, expected {full} "
                f"(stored shape {list(stored.shape)})"
            )

    def read(self, stored: TensorSlice, start: int, stop: int) -> Tensor:
        """Entries [start, stop) of the sharded dimension, still in the stored layout."""
        dim = self.stored_dim(len(stored.shape))
        return stored[(*[slice(None)] * dim, slice(start, stop))]

    def zeros(self, stored: TensorSlice, count: int) -> Tensor:
        """``count`` zero entries of the sharded dimension, in the stored layout."""
        shape = list(stored.shape)
        shape[self.stored_dim(len(shape))] = count
        return torch.zeros(shape, dtype=stored.dtype)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenate parts along the sharded dimension and bring them into parameter layout."""
        joined = parts[0]
        if len(parts) > 1:
            joined = torch.cat(list(parts), dim=self.stored_dim(joined.dim()))
        return joined.mT.contiguous() if self.transposed else joined
