# SPDX-License-Identifier: Apache-2.0
"""What stands in square brackets, as steps that take views and indices that are tensors."""

from __future__ import annotations

import operator
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.fx import Node

from trnport.adapters.neuronx.passes.emitter import Emitter, dtype_of, shape_of
from trnport.adapters.neuronx.passes.steps import Select, Slice, Step, Unsqueeze, go_down, go_up
from trnport.adapters.neuronx.passes.values import value_of


@attrs.define
class Index:
    """An index taken apart.

    Attributes:
        steps: What integers, slices, None and ``...`` do, in order.
        tensors: After the steps, one entry per indexed dimension: None for all of it, or an
            integer tensor. A boolean tensor stands for as many dimensions as it has.
    """

    steps: list[Step] = attrs.field(factory=list)
    tensors: list[Node | None] = attrs.field(factory=list)

    @property
    def is_basic(self) -> bool:
        """Whether it takes a view."""
        return all(entry is None for entry in self.tensors)


def parse_index(index: Any, shape: tuple[int, ...]) -> Index:
    """Take an index of a tensor of some shape apart.

    Raises:
        NotImplementedError: A form that is not supported: lists, single booleans, bounds that
            are computed by the graph, byte masks.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    if not any(entry is Ellipsis for entry in entries):
        entries.append(Ellipsis)
    left = len(shape) - sum(_consumed(entry) for entry in entries)
    found, dim, axis = Index(), 0, 0  # `axis` counts dimensions of the tensor itself
    for entry in entries:
        if entry is Ellipsis:
            found.tensors += [None] * left
            dim, axis = dim + left, axis + left
        elif entry is None:
            found.steps.append(Unsqueeze(dim))
            found.tensors.append(None)
            dim += 1
        elif isinstance(entry, slice):
            start, stop, step = _bounds(entry, shape[axis])
            if (start, stop, step) != (0, shape[axis], 1):
                found.steps.append(Slice(dim, start, stop, step))
            found.tensors.append(None)
            dim, axis = dim + 1, axis + 1
        elif _is_tensor(entry):
            found.tensors.append(entry)
            dim, axis = dim + _consumed(entry), axis + _consumed(entry)
        else:
            found.steps.append(Select(dim, _number(entry)))
            axis += 1
    return found


def assigned(emit: Emitter, whole: Node, index: Any, value: Any) -> Node:
    """What ``whole`` is after ``whole[index] = value``."""
    parsed = parse_index(index, shape_of(whole))
    values = go_down(emit, parsed.steps, whole)
    part = values[-1]
    if parsed.is_basic:
        new = emit.filled_like(part, value)
    else:
        new = _put(emit, part, parsed.tensors, value)
    return go_up(emit, parsed.steps, values, new)


def _put(emit: Emitter, part: Node, tensors: list[Node | None], value: Any) -> Node:
    if _is_tensor(value):  # as an assignment does
        sizes = shape_of(value)
        while sizes and sizes[0] == 1:
            sizes = sizes[1:]
        value = emit.call(torch.reshape, value, sizes)
    masked = _where(emit, part, tensors, value)
    if masked is not None:
        return masked
    if isinstance(value, Node):
        new = emit.cast(value, dtype_of(part))
    else:
        new = emit.method("new_full", part, (), value)
    indices = list(tensors)
    while indices[-1] is None:
        indices.pop()
    return emit.call(torch.ops.aten.index_put.default, part, indices, new)


def _where(emit: Emitter, part: Node, tensors: list[Node | None], value: Any) -> Node | None:
    """A selection by one mask, where the value does not depend on how many elements it has."""
    found = [entry for entry in tensors if entry is not None]
    if len(found) != 1 or dtype_of(found[0]) != torch.bool:
        return None
    (mask,) = found
    behind = len(shape_of(part)) - tensors.index(mask) - len(shape_of(mask))
    if not isinstance(value, Node):
        new = emit.method("new_full", part, (), value)
    elif len(shape_of(value)) <= behind:
        new = emit.cast(value, dtype_of(part))
    else:
        return None
    aligned = emit.call(torch.reshape, mask, shape_of(mask) + (1,) * behind)
    return emit.call(torch.where, aligned, new, part)


def _is_tensor(entry: Any) -> bool:
    return isinstance(entry, Node) and isinstance(value_of(entry), Tensor)


def _consumed(entry: Any) -> int:
    """Dimensions of the indexed tensor that an entry is about."""
    if entry is None or entry is Ellipsis:
        return 0
    if not _is_tensor(entry):
        return 1
    if dtype_of(entry) == torch.uint8:
        raise NotImplementedError(f"index {entry}: uint8 masks are ambiguous; use torch.bool")
    return len(shape_of(entry)) if dtype_of(entry) == torch.bool else 1


def _bounds(entry: slice, size: int) -> tuple[int, int, int]:
    start, stop, step = entry.start, entry.stop, entry.step
    given = [None if bound is None else _number(bound) for bound in (start, stop, step)]
    start, stop, step = slice(*given).indices(size)
    return start, max(start, stop), step


def _number(entry: Any) -> int:
    if isinstance(entry, Node):
        entry = value_of(entry)
    if isinstance(entry, bool) or not hasattr(entry, "__index__") or isinstance(entry, Tensor):
        raise NotImplementedError(
            f"index {entry!r} of type {type(entry).__name__} is not supported; use integers, "
            "slices with constant bounds, None, ... or tensors"
        )
    return operator.index(entry)
