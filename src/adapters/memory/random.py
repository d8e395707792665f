# SPDX-License-Identifier: Apache-2.0
"""A WeightSource that makes up its tensors, for trying a model without its checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import attrs
import torch
from torch import Tensor

from trnport.core.ports.weights import TensorInfo, TensorSlice, WeightSource
from trnport.core.weights import resolve_box, unknown_tensor


def _zero(name: str) -> float:  # noqa: ARG001 - every name has mean 0
    return 0.0


@attrs.frozen(eq=False)
class RandomSlice:
    """A lazy view of one random tensor.

    Attributes:
        shape: Shape of the whole tensor.
        dtype: Its dtype.
        seed: Seed of this tensor's own generator.
        mean: Mean of its entries.
        std: Standard deviation of its entries.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    mean: float
    std: float

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Tensor:
        """Copy a box; IndexError when it leaves the tensor.

        The whole tensor is drawn each time, for a box must equal the same box of the
        whole whatever was read before; only the box is kept.
        """
        box = resolve_box(index, self.shape)
        generator = torch.Generator().manual_seed(self.seed)
        whole = torch.randn(self.shape, generator=generator) * self.std + self.mean
        return whole[tuple(slice(*edges) for edges in box)].to(self.dtype, copy=True).contiguous()

    def read_into(self, index: slice | tuple[slice, ...], out: Tensor) -> None:
        """Copy a box to where it is wanted; IndexError when it leaves the tensor."""
        out.copy_(self[index])

    def announce(self, index: slice | tuple[slice, ...]) -> None:
        """Nothing has to come from anywhere."""


class RandomWeightSource(WeightSource):
    """Normally distributed tensors that depend on their name and the seed alone.

    ``trnport.core.weights.checkpoint_shapes`` gives the shapes that a model asks for. Norm
    weights should lie around 1, or activations vanish layer by layer::

        RandomWeightSource(shapes, seed=0, mean=lambda name: float(name.endswith("norm.weight")))

    Args:
        shapes: Name to shape.
        seed: Another seed gives other tensors.
        dtype: Floating-point dtype of all tensors; the draw itself is fp32.
        std: Standard deviation.
        mean: Mean of the tensor of a given name.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        *,
        std: float = 0.02,
        mean: Callable[[str], float] = _zero,
    ) -> None:
        self._slices = {
            name: RandomSlice(tuple(shapes[name]), dtype, _seed(name, seed), mean(name), std)
            for name in sorted(shapes)
        }

    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return list(self._slices)

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype. KeyError when there is no such tensor."""
        view = self._find(name)
        return TensorInfo(view.shape, view.dtype)

    def open(self, name: str) -> TensorSlice:
        """A lazy view. KeyError when there is no such tensor."""
        return self._find(name)

    def _find(self, name: str) -> RandomSlice:
        try:
            return self._slices[name]
        except KeyError:
            raise unknown_tensor(name, self.names()) from None


def _seed(name: str, seed: int) -> int:
    # Python's own hash of a string changes from process to process.
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # generators take 63 bits
