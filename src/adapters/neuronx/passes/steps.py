# SPDX-License-Identifier: Apache-2.0
"""Steps from a tensor to a view of it, and back with another content.

Each step has a ``down``, which takes the view of a value, and an ``up``, which gives the value
with the view's part replaced. Both emit functional operators only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import torch
from torch.fx import Node
from torch.nn import functional as F

from trnport.adapters.neuronx.passes.emitter import Emitter, shape_of


class Step(Protocol):
    """One step."""

    def down(self, emit: Emitter, whole: Node) -> Node:
        """The view of ``whole``."""

    def up(self, emit: Emitter, whole: Node, part: Node) -> Node:
        """``whole`` with the view's elements replaced by ``part``."""


@attrs.frozen
class Select:
    """One index of a dimension, which disappears."""

    dim: int
    index: int

    def down(self, emit: Emitter, whole: Node) -> Node:
        """``[..., ]`` at the index."""
        return emit.call(torch.select, whole, self.dim, self.index)

    def up(self, emit: Emitter, whole: Node, part: Node) -> Node:
        """Scatter one index."""
        return emit.call(torch.select_scatter, whole, part, self.dim, self.index)


@attrs.frozen
class Slice:
    """Every ``step``-th index of a dimension from ``start`` to before ``stop``, both >= 0."""

    dim: int
    start: int
    stop: int
    step: int = 1

    def down(self, emit: Emitter, whole: Node) -> Node:
        """The slice."""
        bounds = (self.dim, self.start, self.stop, self.step)
        return emit.call(torch.ops.aten.slice.Tensor, whole, *bounds)

    def up(self, emit: Emitter, whole: Node, part: Node) -> Node:
        """Scatter the slice.

        A block that does not begin at 0 is padded to the whole shape and selected by a mask:
        both are constants of the shape, with no update at an offset.
        """
        if self.stop <= self.start:
            return emit.call(torch.clone, whole)
        if self.start and self.step == 1:
            return self._masked(emit, whole, part)
        bounds = (self.dim, self.start, self.stop, self.step)
        return emit.call(torch.slice_scatter, whole, part, *bounds)

    def _masked(self, emit: Emitter, whole: Node, part: Node) -> Node:
        shape = shape_of(whole)
        pads = [0, 0] * (len(shape) - 1 - self.dim) + [self.start, shape[self.dim] - self.stop]
        inside = emit.call(torch.ones_like, part, dtype=torch.bool)
        mask = emit.call(F.pad, inside, pads, value=False)
        return emit.call(torch.where, mask, emit.call(F.pad, part, pads), whole)


@attrs.frozen
class Unsqueeze:
    """A new dimension of size 1."""

    dim: int

    def down(self, emit: Emitter, whole: Node) -> Node:
        """With the dimension."""
        return emit.call(torch.unsqueeze, whole, self.dim)

    def up(self, emit: Emitter, whole: Node, part: Node) -> Node:  # noqa: ARG002  # all of it
        """Without it."""
        return emit.call(torch.squeeze, part, self.dim)


@attrs.frozen
class Permute:
    """Another order of the dimensions."""

    order: tuple[int, ...]

    def down(self, emit: Emitter, whole: Node) -> Node:
        """In the order."""
        return emit.call(torch.permute, whole, self.order)

    def up(self, emit: Emitter, whole: Node, part: Node) -> Node:  # noqa: ARG002  # all of it
        """In the order before."""
        back = tuple(self.order.index(dim) for dim in range(len(self.order)))
        return emit.call(torch.permute, part, back)


@attrs.frozen
class Reshape:
    """The same elements in another shape."""

    shape: tuple[int, ...]

    def down(self, emit: Emitter, whole: Node) -> Node:
        """In the shape."""
        return emit.call(torch.reshape, whole, self.shape)

    def up(self, emit: Emitter, whole: Node, part: Node) -> Node:
        """In the shape before."""
        return emit.call(torch.reshape, part, shape_of(whole))


@attrs.frozen
class Diagonal:
    """A diagonal of two dimensions."""

    offset: int
    dim1: int
    dim2: int

    def down(self, emit: Emitter, whole: Node) -> Node:
        """The diagonal."""
        return emit.call(torch.diagonal, whole, self.offset, self.dim1, self.dim2)

    def up(self, emit: Emitter, whole: Node, part: Node) -> Node:
        """Scatter the diagonal."""
        place = (self.offset, self.dim1, self.dim2)
        return emit.call(torch.diagonal_scatter, whole, part, *place)


def go_down(emit: Emitter, steps: Sequence[Step], whole: Node) -> list[Node]:
    """All values on the way, ``whole`` first and the view last."""
    values = [whole]
    for step in steps:
        values.append(step.down(emit, values[-1]))
    return values


def go_up(emit: Emitter, steps: Sequence[Step], values: Sequence[Node], part: Node) -> Node:
    """The whole after the view became ``part``; ``values`` are those of the way down."""
    for step, whole in zip(reversed(steps), reversed(values[: len(steps)]), strict=True):
        part = step.up(emit, whole, part)
    return part
