# SPDX-License-Identifier: Apache-2.0
"""What turns stored tensors into one rank's parameter, and how it is attached to one."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from trnport.core.errors import CheckpointError
from trnport.core.ports.weights import TensorSlice

Shape = tuple[int, ...]
Transform = Callable[[list[TensorSlice], int], Tensor]
"""(stored tensors, rank) to the parameter of that rank."""
Fill = Callable[[list[TensorSlice], int, Tensor], None]
"""(stored tensors, rank, the parameter of that rank, not yet filled)."""
StoredShapes = Callable[[Shape], list[Shape]]
"""Shape of a parameter to the full shapes of the stored tensors it is made from."""

_ATTRIBUTE = "weight_loader"


class WeightLoader:
    """Reads one rank's share of a parameter.

    Attributes:
        transform: Makes the parameter. It slices what it needs and nothing else, and must
            refuse a stored tensor whose full extent along a dimension it slices is not
            the expected one: a slice of a larger tensor fits, but holds the wrong rows.
        stored_shapes: Full shapes expected in the checkpoint for a parameter of a given
            shape, one for each stored tensor. With it, :func:`load_weights` finds every
            wrong shape before it reads anything; None leaves that to ``transform``.
        fill: Does the same as ``transform``, but writes into a parameter that exists. Without
            it loading takes the memory of the parameter once more. It is also called ahead of
            time with slices that read nothing and an ``out`` on the meta device.
        extra_dtypes: Stored dtypes, besides the plain floating ones, that ``transform``
            turns into numbers, such as packed integers that it dequantises.
    """

    def __init__(
        self,
        transform: Transform | None = None,
        *,
        stored_shapes: StoredShapes | None = None,
        fill: Fill | None = None,
        extra_dtypes: Collection[torch.dtype] = (),
    ) -> None:
        if transform is None:
            transform, stored_shapes, fill = _read_unchanged, _same_shape, _fill_unchanged
        self.transform = transform
        self.stored_shapes = stored_shapes
        self.fill = fill
        self.extra_dtypes = frozenset(extra_dtypes)

    def load(self, slices: list[TensorSlice], rank: int) -> Tensor:
        """The parameter of ``rank``."""
        return self.transform(slices, rank)


SafetensorsWeightLoader = WeightLoader
"""The name in the published vocabulary; nothing here depends on the file format."""


def _read_unchanged(slices: list[TensorSlice], rank: int) -> Tensor:  # noqa: ARG001
    (stored,) = exactly(1, slices)
    return stored[()]


def _fill_unchanged(slices: list[TensorSlice], rank: int, out: Tensor) -> None:  # noqa: ARG001
    (stored,) = exactly(1, slices)
    stored.read_into((), out)


def _same_shape(shape: Shape) -> list[Shape]:
    return [shape]


def set_weight_loader(param: Tensor, loader: WeightLoader) -> None:
    """Attach a loader to a parameter, or to a buffer that the mapping names."""
    setattr(param, _ATTRIBUTE, loader)


def get_weight_loader(param: Tensor) -> WeightLoader:
    """The attached loader, or one that reads the stored tensor unchanged."""
    loader = getattr(param, _ATTRIBUTE, None)
    return loader if isinstance(loader, WeightLoader) else WeightLoader()


def with_rank_override(loader: WeightLoader, rank: int) -> WeightLoader:
    """The same loader, always for ``rank``, whatever rank the weights are loaded for."""
    fill = loader.fill
    return WeightLoader(
        lambda slices, _: loader.transform(slices, rank),
        stored_shapes=loader.stored_shapes,
        fill=(lambda slices, _, out: fill(slices, rank, out)) if fill else None,
        extra_dtypes=loader.extra_dtypes,
    )


def first_rank_weight_loader() -> WeightLoader:
    """The whole tensor on rank 0, zeros on every other rank, which reads nothing.

    For a bias whose results are summed over the ranks.
    """

    def transform(slices: list[TensorSlice], rank: int) -> Tensor:
        (stored,) = exactly(1, slices)
        return stored[()] if rank == 0 else torch.zeros(stored.shape, dtype=stored.dtype)

    def fill(slices: list[TensorSlice], rank: int, out: Tensor) -> None:
        (stored,) = exactly(1, slices)
        if rank == 0:
            stored.read_into((), out)
        else:
            out.zero_()

    return WeightLoader(transform, stored_shapes=_same_shape, fill=fill)


def exactly(count: int, slices: list[TensorSlice]) -> list[TensorSlice]:
    """The slices, if there are ``count`` of them.

    Raises:
        CheckpointError: There are not.
    """
    if len(slices) != count:
        raise CheckpointError(f"the loader takes {count} stored tensor(s), not {len(slices)}")
    return slices
