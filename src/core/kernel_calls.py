# SPDX-License-Identifier: Apache-2.0
"""A call of an operator as data: shapes and constants, from which tensors can be made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self

import attrs
import torch
from torch import Tensor

from trnport.core.ports.kernels import Kernels


@attrs.frozen
class Shape:
    """A tensor's sizes and dtype."""

    sizes: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes))


@attrs.frozen
class KernelCall:
    """One call of an operator of the Kernels port.

    Attributes:
        operator: Name of the operator.
        arguments: Parameter name and :class:`Shape` or constant, in the port's order.
    """

    operator: str
    arguments: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, operator: str, values: Mapping[str, Any]) -> Self:
        """Describe a call by its arguments by name; those left out have their defaults."""
        bound = _signature(operator).bind(**values)
        bound.apply_defaults()
        described = (
            (name, Shape(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else x)
            for name, x in bound.arguments.items()
        )
        return cls(operator, tuple(described))

    def __getitem__(self, name: str) -> Any:
        return dict(self.arguments)[name]

    @property
    def shapes(self) -> dict[str, Shape]:
        """The tensors by parameter name."""
        return {name: x for name, x in self.arguments if isinstance(x, Shape)}

    def resized(self, sizes: Mapping[tuple[str, int], int]) -> Self:
        """The same call with other sizes, by parameter name and dimension; absent ones pass."""
        changed = []
        for name, value in self.arguments:
            if isinstance(value, Shape):
                new = [sizes.get((name, dim), size) for dim, size in enumerate(value.sizes)]
                changed.append((name, Shape(tuple(new), value.dtype)))
            else:
                changed.append((name, value))
        return attrs.evolve(self, arguments=tuple(changed))

    def tensors(self, fill: Callable[[str, Shape], Tensor] | None = None) -> dict[str, Any]:
        """Arguments by name: a full batch, every block owned and every position filled.

        Args:
            fill: Makes a floating tensor of a parameter; zeros when None.
        """
        make = fill or (lambda _, shape: torch.zeros(shape.sizes, dtype=shape.dtype))
        return {
            name: self._tensor(name, value, make) if isinstance(value, Shape) else value
            for name, value in self.arguments
        }

    def _tensor(self, name: str, shape: Shape, make: Callable[[str, Shape], Tensor]) -> Tensor:
        if name == "valid":
            return torch.ones(shape.sizes, dtype=torch.bool)
        if shape.dtype.is_floating_point:
            return make(name, shape)
        blocks, _, block_size, _ = self["k_cache"].sizes
        count = shape.sizes[0]
        if name == "slot_mapping":  # block 0 is the null block
            slots = torch.arange(block_size, block_size + count)
            return torch.where(slots < blocks * block_size, slots, -1).to(shape.dtype)
        if name == "block_table":
            numbers = torch.arange(count * shape.sizes[1]) % max(blocks - 1, 1)
            return (numbers + min(blocks - 1, 1)).view(shape.sizes).to(shape.dtype)
        owned = self["block_table"].sizes[1] * block_size
        last = owned if name == "cached_seq_len" else owned - 1
        return torch.full(shape.sizes, last, dtype=shape.dtype)


def invoke(kernels: Kernels, operator: str, values: Mapping[str, Any]) -> Any:
    """Call an operator by argument names, as the model does: in order, and some by keyword."""
    bound = _signature(operator).bind(**values)
    return getattr(kernels, operator)(*bound.args, **bound.kwargs)


def _signature(operator: str) -> inspect.Signature:
    whole = inspect.signature(getattr(Kernels, operator))
    return whole.replace(parameters=list(whole.parameters.values())[1:])
