# SPDX-License-Identifier: Apache-2.0
"""Which nodes are views of which, and the steps between them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.fx import Node

from trnport.adapters.neuronx.passes.indexing import parse_index
from trnport.adapters.neuronx.passes.steps import (
    Diagonal,
    Permute,
    Reshape,
    Select,
    Slice,
    Step,
)
from trnport.adapters.neuronx.passes.values import same_place, storage_of, value_of


@attrs.frozen(eq=False)
class View:
    """A node whose tensor is part of another node's.

    Attributes:
        base: The other node, itself a view or not.
        steps: From the base to the view; None where no functional operator writes back.
        is_same: Whether it is the base itself, element for element.
    """

    base: Node
    steps: Sequence[Step] | None
    is_same: bool = False


_PERMUTING = frozenset({
    "transpose", "permute", "t", "T", "mT", "movedim", "moveaxis", "swapaxes", "swapdims",
    "numpy_T", "matrix_H", "adjoint",
})  # fmt: skip
_RESHAPING = frozenset({
    "view", "_unsafe_view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "ravel",
    "squeeze", "unsqueeze",
})  # fmt: skip
_PARTS = frozenset({
    "split", "chunk", "tensor_split", "split_with_sizes", "hsplit", "vsplit", "dsplit",
})  # fmt: skip
_DIMS = {"hsplit": 1, "vsplit": 0, "dsplit": 2}


def find_view(node: Node) -> View | None:
    """What a node is a view of; None when it has memory of its own or is no tensor."""
    value = value_of(node)
    if not isinstance(value, Tensor):
        return None
    is_item = node.target is operator.getitem and not isinstance(value_of(_first(node)), Tensor)
    base = _sharing(_first(node) if is_item else node, value)
    if base is None:
        return None
    whole = value_of(base)
    if same_place(whole, value):
        return View(base, (), is_same=True)
    if whole.dtype != value.dtype:
        return View(base, None)
    return View(base, _part_steps(node, whole) if is_item else _steps(node, whole, value))


def name_of(node: Node) -> str:
    """The operator's plain name, however the graph spells it."""
    if node.target is getattr:
        return str(node.args[1])
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.split("::")[-1]
    return str(getattr(node.target, "__name__", node.target))


def argument(node: Node, position: int, name: str, default: Any) -> Any:
    """An argument given by position or by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def _first(node: Node) -> Any:
    return node.args[0]


def _sharing(node: Node, value: Tensor) -> Node | None:
    """The argument whose memory a result lies in."""
    for candidate in node.all_input_nodes:
        other = value_of(candidate)
        if isinstance(other, Tensor) and storage_of(other) == storage_of(value):
            return candidate
    return None


def _steps(node: Node, whole: Tensor, value: Tensor) -> Sequence[Step] | None:
    name = name_of(node)
    if name == "getitem":
        index = parse_index(node.args[1], tuple(whole.shape))
        return index.steps if index.is_basic else None
    if name in _PERMUTING and not whole.is_complex():
        return [Permute(_order(node, whole.ndim))]
    if name in _RESHAPING:
        return [Reshape(tuple(value.shape))]
    if name in {"select", "narrow", "slice"}:
        return [_cut(node, name, whole)]
    if name == "diagonal":
        offset, dim1, dim2 = (
            argument(node, 1 + i, key, default)
            for i, (key, default) in enumerate((("offset", 0), ("dim1", 0), ("dim2", 1)))
        )
        return [Diagonal(offset, dim1, dim2)]
    in_order = whole.is_contiguous() and value.is_contiguous()
    if in_order and whole.numel() == value.numel():
        return [Reshape(tuple(value.shape))]
    return None


def _cut(node: Node, name: str, whole: Tensor) -> Step:
    dim = argument(node, 1, "dim", 0) % whole.ndim
    size = whole.shape[dim]
    if name == "select":
        return Select(dim, argument(node, 2, "index", 0) % size)
    start = argument(node, 2, "start", 0) or 0
    if name == "narrow":
        start = start % size if start < 0 else start
        return Slice(dim, start, start + argument(node, 3, "length", 0))
    start, stop, step = slice(
        start, argument(node, 3, "end", None), argument(node, 4, "step", 1)
    ).indices(size)
    return Slice(dim, start, max(start, stop), step)


def _part_steps(node: Node, whole: Tensor) -> Sequence[Step] | None:
    """Steps of one of several results, such as those of a split."""
    many, number = _first(node), node.args[1]
    name = name_of(many)
    if not isinstance(number, int):
        return None
    parts = value_of(many)
    dim = argument(many, 1 if name == "unbind" else 2, "dim", _DIMS.get(name, 0)) % whole.ndim
    if name == "unbind":
        return [Select(dim, number)]
    if name not in _PARTS or (name == "hsplit" and whole.ndim == 1):
        return None
    start = sum(part.shape[dim] for part in parts[:number])
    return [Slice(dim, start, start + parts[number].shape[dim])]


def _order(node: Node, dims: int) -> tuple[int, ...]:
    """The order of dimensions that an operator gives, seen on a tensor of distinct sizes."""
    probe = torch.empty(tuple(range(2, 2 + dims)), device="meta")
    if node.target is getattr:
        result = getattr(probe, str(node.args[1]))
    elif node.op == "call_method":
        result = getattr(probe, str(node.target))(*node.args[1:], **node.kwargs)
    else:
        result = node.target(probe, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return tuple(size - 2 for size in result.shape)
