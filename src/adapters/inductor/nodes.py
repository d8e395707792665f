# SPDX-License-Identifier: Apache-2.0
"""What is to be known about a graph's nodes before they are moved."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.node import map_arg

_HEAVY = (
    "mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu",
)  # fmt: skip
"""Operators of PyTorch that inductor calls rather than generates."""


def storages(node: Node) -> set[int]:
    """Which memory a node's tensors lie in."""
    found = node.meta.get("val")
    values = found if isinstance(found, tuple | list) else [found]
    return {v.untyped_storage()._cdata for v in values if isinstance(v, Tensor)}


def written(graph: Graph) -> set[int]:
    """The memory that some node of a graph writes to."""
    found: set[int] = set()
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        given = dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False))
        given |= node.kwargs
        for argument in node.target._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                map_arg(given.get(argument.name), lambda n: found.update(storages(n)))
    return found


def is_free(node: Node) -> bool:
    """Whether a value is had anew for nothing: it is a view of another one, or a constant."""
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return node.op == "get_attr" or is_view(node) or (is_pure(node) and not node.all_input_nodes)


def is_view(node: Any) -> bool:
    """Whether a node's value is a part of its input."""
    return isinstance(node.target, OpOverload) and node.target._schema._is_view_op()


def is_pure(node: Node) -> bool:
    """Whether a node of PyTorch's own computes the same each time and writes nowhere."""
    target = node.target
    if target is operator.getitem:
        return True
    return (
        isinstance(target, OpOverload)
        and target.namespace == "aten"
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
    )


def is_heavy(node: Node) -> bool:
    """Whether a node is a call of code that exists, which no other node is fused with."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    return target.namespace not in ("aten", "prims") or target._opname in _HEAVY


def form(node: Node) -> tuple[Any, ...]:
    """Dtype, shape, strides and device of a node's tensors."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return tuple(
        (str(v.dtype), tuple(v.shape), v.stride(), str(v.device)) if isinstance(v, Tensor) else v
        for v in values
    )


def plain(value: Any, names: Mapping[Node, Any] | None = None) -> Any:
    """A node's arguments as something that can be hashed, other nodes by their names if given."""
    if isinstance(value, Node):
        return value if names is None else names[value]
    if isinstance(value, list | tuple):
        return tuple(plain(item, names) for item in value)
    if isinstance(value, dict):
        return tuple((key, plain(item, names)) for key, item in sorted(value.items()))
    return f"{type(value).__name__} {value!r}"


def reachable(roots: Iterable[Node]) -> set[Node]:
    """Nodes and everything that they are computed from."""
    found: set[Node] = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found
