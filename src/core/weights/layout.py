# SPDX-License-Identifier: Apache-2.0
"""Where the sharded dimension of a parameter lies in its stored tensor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from trnport.core.errors import CheckpointError, ConfigError
from trnport.core.ports.weights import TensorSlice
from trnport.core.weights.loader import Shape, StoredShapes, WeightLoader


@attrs.frozen(eq=False)
class Piece:
    """Consecutive entries of a parameter along its sharded dimension.

    Attributes:
        size: How many.
        stored: The tensor they are read from; None for zeros.
        start: The first of them there.
        repeats: Where in the parameter the same entries already are; then nothing is read.
    """

    size: int
    stored: TensorSlice | None = None
    start: int = 0
    repeats: int | None = None


PiecesOf = Callable[[list[TensorSlice], int], list[Piece]]
"""(stored tensors, rank) to the pieces of that rank's parameter."""


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

    def fill(self, pieces: Sequence[Piece], out: Tensor) -> None:
        """Put pieces one after the other along the sharded dimension of a parameter.

        Args:
            pieces: As many entries as the dimension holds.
            out: The parameter, in its own layout; what is stored is cast to its dtype.
        """
        view = out.mT if self.transposed else out
        dim, at = self.stored_dim(out.dim()), 0
        for piece in pieces:
            target = view.narrow(dim, at, piece.size)
            if piece.repeats is not None:
                target.copy_(view.narrow(dim, piece.repeats, piece.size))
            elif piece.stored is None:
                target.zero_()
            else:
                box = slice(piece.start, piece.start + piece.size)
                piece.stored.read_into((*[slice(None)] * dim, box), target)
            at += piece.size
        if at != view.shape[dim]:
            raise CheckpointError(f"dimension {self.dim} holds {view.shape[dim]}, not {at}")

    def make(self, pieces: Sequence[Piece], slices: Sequence[TensorSlice]) -> Tensor:
        """A parameter of pieces, in the dtype that the stored tensors have."""
        shape = list(slices[0].shape)
        shape[self.stored_dim(len(shape))] = sum(piece.size for piece in pieces)
        if self.transposed:
            shape[-2:] = reversed(shape[-2:])
        dtypes = [stored.dtype for stored in slices]
        out = torch.empty(shape, dtype=functools.reduce(torch.promote_types, dtypes))
        self.fill(pieces, out)
        return out

    def loader(self, pieces_of: PiecesOf, stored_shapes: StoredShapes) -> WeightLoader:
        """A loader of what ``pieces_of`` says for the stored tensors and a rank."""

        def transform(slices: list[TensorSlice], rank: int) -> Tensor:
            return self.make(pieces_of(slices, rank), slices)

        def fill(slices: list[TensorSlice], rank: int, out: Tensor) -> None:
            self.fill(pieces_of(slices, rank), out)

        return WeightLoader(transform, stored_shapes=stored_shapes, fill=fill)
