# SPDX-License-Identifier: Apache-2.0
"""Memory of a graph: which nodes share it and which ones change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from trnport.adapters.neuronx.passes.values import (
    Evaluator,
    example_values,
    same_place,
    storage_of,
    tensors_in,
    value_of,
)
from trnport.adapters.neuronx.passes.views import View, find_view
from trnport.adapters.neuronx.passes.writes import Write, find_write


class Analysis:
    """One scan of a graph, in order of execution.

    Args:
        gm: The graph. Its nodes get values.
        example_inputs: One per placeholder; when None, what Dynamo left on the placeholders.

    Attributes:
        placeholders: Inputs in order.
        views: Nodes that are views of others.
        writes: Nodes that change a tensor.

    Raises:
        NotImplementedError: A node changes a tensor in a way that is not understood.
        ValueError: Shapes of inputs are unknown.
    """

    def __init__(self, gm: GraphModule, example_inputs: Sequence[Any] | None = None) -> None:
        self.placeholders: list[Node] = []
        self.views: dict[Node, View] = {}
        self.writes: dict[Node, Write] = {}
        examples = iter(example_values(gm, example_inputs))
        evaluator = Evaluator(gm)
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                evaluator.place(node, next(examples))
                self.placeholders.append(node)
            elif node.op != "output":
                self._visit(node, evaluator)

    def root(self, node: Node) -> Node:
        """The node whose memory a node's tensor lies in."""
        while node in self.views:
            node = self.views[node].base
        return node

    def is_whole(self, node: Node) -> bool:
        """Whether a node's tensor is its root's, element for element."""
        value, root = value_of(node), value_of(self.root(node))
        return isinstance(value, Tensor) and isinstance(root, Tensor) and same_place(value, root)

    def _visit(self, node: Node, evaluator: Evaluator) -> None:
        evaluator.evaluate(node)
        write = find_write(node)
        if write is not None:
            self.writes[node] = write
            self._check_root(write)
        # An operator that changes what nobody recognised must not slip through.
        known = {storage_of(value_of(t)) for t in write.targets} if write else set()
        arguments = {storage_of(x) for x in tensors_in(evaluator.arguments(node))}
        if evaluator.written & arguments - known:
            raise NotImplementedError(
                f"{node.format_node()}: it changes an argument in place, in a form that is "
                "not supported"
            )
        view = find_view(node)
        if view is not None:
            self.views[node] = view

    def _check_root(self, write: Write) -> None:
        for target in write.targets:
            root = self.root(target)
            if root.op == "get_attr":
                raise NotImplementedError(
                    f"{write.node.format_node()}: it changes {root.target}, a constant of the "
                    "graph; make it an input"
                )
