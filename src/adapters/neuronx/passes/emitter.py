# SPDX-License-Identifier: Apache-2.0
"""Write nodes of a new graph and know their shapes at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from trnport.adapters.neuronx.passes.values import Evaluator, value_of


class Emitter:
    """Appends to a graph.

    Args:
        graph: The graph.
        evaluator: Finds the nodes' values.
    """

    def __init__(self, graph: Graph, evaluator: Evaluator) -> None:
        self._graph = graph
        self._evaluator = evaluator
        self.origin: Node | None = None
        """The node being rewritten: what it says about its source goes to its successors."""

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """A call of a function."""
        return self.node("call_function", target, args, kwargs)

    def method(self, name: str, *args: Any, **kwargs: Any) -> Node:
        """A call of a tensor's method."""
        return self.node("call_method", name, args, kwargs)

    def node(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Node:
        """Any node that computes something."""
        node = self._graph.create_node(op, target, args, kwargs or {})
        if self.origin is not None and "stack_trace" in self.origin.meta:
            node.meta["stack_trace"] = self.origin.meta["stack_trace"]
        self._evaluator.evaluate(node)
        return node

    def copy(self, node: Node, transform: Callable[[Node], Node]) -> Node:
        """The same call on other arguments; its meta stays."""
        new = self._graph.node_copy(node, transform)
        self._evaluator.evaluate(new)
        return new

    def cast(self, node: Node, dtype: torch.dtype) -> Node:
        """The node in a dtype."""
        return node if dtype_of(node) == dtype else self.method("to", node, dtype)

    def filled_like(self, node: Node, value: Any) -> Node:
        """A tensor of the node's shape and dtype, from a number or something that expands to it."""
        if not isinstance(value, Node) or not isinstance(value_of(value), Tensor):
            return self.call(torch.full_like, node, value)
        shape, extra = shape_of(node), len(shape_of(value)) - len(shape_of(node))
        if extra > 0:  # assigning drops leading dimensions of size 1
            value = self.call(torch.reshape, value, shape_of(value)[extra:])
        return self.method("expand", self.cast(value, dtype_of(node)), shape)


def shape_of(node: Node) -> tuple[int, ...]:
    """Sizes of a node's tensor."""
    return tuple(value_of(node).shape)


def dtype_of(node: Node) -> torch.dtype:
    """Dtype of a node's tensor."""
    return value_of(node).dtype
