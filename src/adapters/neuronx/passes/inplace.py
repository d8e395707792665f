# SPDX-License-Identifier: Apache-2.0
"""Replace changes of tensors by new tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from trnport.adapters.neuronx.passes.analysis import Analysis
from trnport.adapters.neuronx.passes.emitter import Emitter
from trnport.adapters.neuronx.passes.functional import new_values
from trnport.adapters.neuronx.passes.steps import go_down, go_up
from trnport.adapters.neuronx.passes.values import Evaluator, storage_of, value_of
from trnport.adapters.neuronx.passes.writes import Kind, Write


class InPlaceToOutOfPlace:
    """Makes a graph in which no node changes a tensor.

    Every change becomes a new value of the tensor whose memory it is, named
    ``<tensor>_modified``. Whatever reads that memory later, through any view, reads the new
    value; the compilers' language knows values only.
    """

    name = "in_place_to_out_of_place"

    def run(
        self, gm: GraphModule, *, example_inputs: Sequence[Any] | None = None, **_: Any
    ) -> Mapping[str, Any]:
        """Rewrite the graph.

        Args:
            gm: The graph.
            example_inputs: One per placeholder, for shapes; when None, what Dynamo left.

        Returns:
            ``rewritten_writes``: number of nodes that changed a tensor.

        Raises:
            NotImplementedError: A change has no functional form; the message names the node.
        """
        analysis = Analysis(gm, example_inputs)
        if analysis.writes:
            gm.graph = _Rewriter(gm, analysis).rewrite()
            gm.recompile()
        return {"rewritten_writes": len(analysis.writes)}


class _Rewriter:
    """Builds the new graph node by node, and knows which new nodes are out of date.

    Memory is named by its root node. Each change raises the memory's version; a view that was
    made at an earlier version is made again when it is read.
    """

    def __init__(self, gm: GraphModule, analysis: Analysis) -> None:
        self._old, self._analysis = gm.graph, analysis
        self._graph = Graph(owning_module=gm, tracer_cls=gm.graph._tracer_cls)
        self._evaluator = Evaluator(gm)
        self._emit = Emitter(self._graph, self._evaluator)
        self._new: dict[Node, Node] = {}
        self._made_at: dict[Node, int] = {}
        self._version: Counter[Node] = Counter()

    def rewrite(self) -> Graph:
        """The new graph, without nodes that nothing reads."""
        self._graph._codegen = self._old._codegen
        for node in self._old.nodes:
            self._emit.origin = node
            write = self._analysis.writes.get(node)
            if node.op == "output":
                self._graph.output(self._read(node.args[0]))
            elif node.op == "placeholder":
                new = self._graph.node_copy(node)
                self._evaluator.place(new, value_of(node))
                self._set(node, new)
            elif write is None:
                self._copy(node)
            else:
                self._change(node, write)
        self._graph.eliminate_dead_code()
        self._graph.lint()
        return self._graph

    def _read(self, argument: Any) -> Any:
        """An argument with every old node replaced by its up-to-date new one."""
        return map_arg(argument, self._current)

    def _current(self, node: Node) -> Node:
        if self._made_at[node] != self._version[self._memory(node)]:
            self._copy(node)
        return self._new[node]

    def _memory(self, node: Node) -> Node:
        """The root of a tensor's memory; of a tuple of views (a split's) that of its parts."""
        if isinstance(value_of(node), Tensor):
            return self._analysis.root(node)
        return self._tuple_memory(node)

    def _tuple_memory(self, node: Node) -> Node:
        parts = value_of(node)
        if not isinstance(parts, list | tuple) or node in self._analysis.writes:
            return node
        memories = {storage_of(part) for part in parts if isinstance(part, Tensor)}
        for source in node.all_input_nodes:
            value = value_of(source)
            if isinstance(value, Tensor) and storage_of(value) in memories:
                return self._analysis.root(source)
        return node

    def _set(self, node: Node, new: Node) -> None:
        self._new[node] = new
        self._made_at[node] = self._version[self._memory(node)]

    def _copy(self, node: Node) -> None:
        view = self._analysis.views.get(node)
        if view is not None and view.is_same:
            self._set(node, self._current(view.base))
            return
        new = self._emit.copy(node, self._current)
        self._set(node, self._in_order(new, node))

    def _change(self, node: Node, write: Write) -> None:
        _check_overlap(write)
        results, values = new_values(self._emit, write, self._read)
        for target, value in zip(write.targets, values, strict=True):
            self._assign(target, value)
        if results is not None:
            self._set(node, results)
        elif node in self._analysis.views:
            self._copy(node)
        elif write.kind is Kind.OUT and not isinstance(value_of(node), Tensor):
            self._emit_tuple(node, write)

    def _emit_tuple(self, node: Node, write: Write) -> None:
        items = tuple(self._current(target) for target in write.targets)
        self._set(node, self._emit.call(_tuple_of, *items))

    def _assign(self, target: Node, value: Node) -> None:
        """Make ``value`` the content of a tensor and of all memory around it."""
        views, root = self._analysis.views, self._analysis.root(target)
        renewed = {target: self._in_order(value, target)}
        node = target
        while node in views:
            view = views[node]
            if view.steps is None:
                raise NotImplementedError(
                    f"{target.format_node()} is changed in place, but it is a view of "
                    f"{view.base.name} in a form that cannot be written back"
                )
            values = go_down(self._emit, view.steps[:-1], self._current(view.base))
            whole = go_up(self._emit, view.steps, values, renewed[node])
            node = view.base
            renewed[node] = self._in_order(whole, node)
        if renewed[root].name != root.name:
            renewed[root]._rename(f"{root.name}_modified")
        self._version[root] += 1
        for old, new in renewed.items():
            self._set(old, new)

    def _in_order(self, new: Node, old: Node) -> Node:
        """The new node with the old one's strides, as far as later views may rely on them."""
        value, expected = value_of(new), value_of(old)
        if not isinstance(value, Tensor) or not isinstance(expected, Tensor):
            return new
        if expected.is_contiguous() and not value.is_contiguous():
            return self._emit.method("contiguous", new)
        return new


def _tuple_of(*items: Any) -> tuple[Any, ...]:
    return items


def _check_overlap(write: Write) -> None:
    """Refuse to change two tensors at once that may lie in the same memory."""
    seen: list[tuple[int, int, int]] = []
    for target in write.targets:
        start, stop = _extent(value_of(target))
        memory = storage_of(value_of(target))
        if any(m == memory and start < b and a < stop for m, a, b in seen):
            raise NotImplementedError(
                f"{write.node.format_node()}: two of the tensors it changes may overlap"
            )
        seen.append((memory, start, stop))


def _extent(x: torch.Tensor) -> tuple[int, int]:
    start = int(x.storage_offset())
    span = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return start, start + 1 + int(span)
