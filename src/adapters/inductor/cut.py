# SPDX-License-Identifier: Apache-2.0
"""Cut a graph into parts, so that what a model repeats for each layer is compiled once.

The graph of a model with 30 equal layers is 30 times the same nodes with other weights. Cuts are
made in front of one operator of each layer, whichever makes equal parts. Only operators come into
question that inductor calls and does not generate: nothing is fused with them, so a cut there
takes no fusion away.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from trnport.adapters.inductor import nodes as of
from trnport.adapters.inductor.plan import Call, Plan, allocate

_PART = 20
"""What a part costs to compile besides its nodes, in nodes."""

_WORTH = 0.8
"""The most that a cut may leave to compile, as a share of the graph."""


@attrs.frozen(eq=False)
class Piece:
    """Consecutive nodes of a graph.

    Attributes:
        nodes: The nodes, views of inputs and constants among them.
        inputs: What they read from elsewhere, in the order of use.
        outputs: What is read elsewhere.
        does: Equal for pieces that compute the same from other inputs.
    """

    nodes: list[Node]
    inputs: list[Node]
    outputs: list[Node]
    does: Any

    @property
    def form(self) -> Any:
        """Equal for pieces that do the same and return the same of it."""
        return self.does, tuple(self.nodes.index(node) for node in self.outputs)


class Cutter:
    """Cuts one graph.

    Args:
        graph: Operators on tensors; its outputs are a list of tensors.
    """

    def __init__(self, graph: GraphModule) -> None:
        self._graph = graph
        nodes = list(graph.graph.nodes)
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        self._results = [_unaliased(node) for node in nodes[-1].args[0]]
        written = of.written(graph.graph)
        # A view of what is written shows what was written; a constant would not.
        self._free = {
            node
            for node in nodes
            if of.is_free(node) and (of.is_view(node) or not of.storages(node) & written)
        }
        self._work = [
            node for node in nodes if node.op == "call_function" and node not in self._free
        ]
        self._numbers = {node: number for number, node in enumerate(self._work)}
        self._last_use = self._find_last_uses()

    def cut(self) -> list[Piece]:
        """The pieces with the least to compile; one piece, if no cut is worth it."""
        best = self._pieces([])
        limit = _WORTH * _cost(best)
        for cuts in self._candidates():
            pieces = self._pieces(cuts)
            if _cost(pieces) < limit and self._are_separate(pieces):
                best, limit = pieces, _cost(pieces)
        return best

    def parts(self, pieces: Sequence[Piece]) -> tuple[list[GraphModule], Plan]:
        """Graphs of the distinct pieces, and the program of all of them."""
        numbers = {node: number for number, node in enumerate(self._placeholders)}
        known: dict[Any, int] = {}
        graphs: list[GraphModule] = []
        calls: list[Call] = []
        for piece in pieces:
            if piece.form not in known:
                known[piece.form] = len(graphs)
                graphs.append(GraphModule(self._graph, _graph_of(piece)))
            inputs = tuple(numbers[node] for node in piece.inputs)
            for node in piece.outputs:
                numbers[node] = len(numbers)
            outputs = tuple(numbers[node] for node in piece.outputs)
            calls.append(Call(known[piece.form], inputs, outputs))
        results = [numbers[node] for node in self._results]
        return graphs, allocate(len(self._placeholders), calls, results)

    def _candidates(self) -> Iterator[list[int]]:
        """Where equal operators stand that a cut can be made in front of."""
        places = defaultdict(list)
        for number, node in enumerate(self._work):
            if of.is_heavy(node):
                forms = tuple(of.form(source) for source in node.all_input_nodes)
                places[node.target, forms, of.form(node)].append(number)
        yield from (cuts for cuts in places.values() if len(cuts) > 1)

    def _pieces(self, cuts: Sequence[int]) -> list[Piece]:
        """Pieces that begin at the start and at each cut."""
        bounds = [0, *(number for number in cuts if number), len(self._work)]
        pieces = [self._piece(*pair) for pair in itertools.pairwise(bounds)]
        # The last layer is followed by the head, which one more cut parts from it.
        last = bounds[-2]
        for length in {end - start for start, end in itertools.pairwise(bounds[:-1])}:
            if last + length < len(self._work):
                layer = _like_one_of(pieces[:-1], self._piece(last, last + length))
                if layer:
                    return [*pieces[:-1], layer, self._piece(last + length, len(self._work))]
        return pieces

    def _piece(self, start: int, end: int) -> Piece:
        nodes: list[Node] = []
        inputs: list[Node] = []
        names: dict[Node, Any] = {}
        form: list[Any] = []

        def add(node: Node) -> None:
            if node in names:
                return
            number = self._numbers.get(node)
            is_own = node in self._free or (number is not None and start <= number < end)
            if not is_own:
                names[node] = ("input", len(inputs), of.form(node))
                inputs.append(node)
                return
            for source in node.all_input_nodes:
                add(source)
            form.append((node.target, of.plain(node.args, names), of.plain(node.kwargs, names)))
            names[node] = len(nodes)
            nodes.append(node)

        for node in self._work[start:end]:
            add(node)
        # Results that are views are made by the last piece, whatever they are views of.
        views = [n for n in self._results if n in self._free and end == len(self._work)]
        for node in views:
            add(node)
        outputs = [n for n in nodes if self._last_use.get(n, -1) >= end or n in views]
        return Piece(nodes, inputs, outputs, tuple(form))

    def _find_last_uses(self) -> dict[Node, int]:
        """The last piece of work that reads each one, be it through views."""
        last: dict[Node, int] = {}

        def use(node: Node, at: int) -> None:
            if node in self._free:
                for source in node.all_input_nodes:
                    use(source, at)
            elif node in self._numbers:
                last[node] = max(at, last.get(node, at))

        for number, node in enumerate(self._work):
            for source in node.all_input_nodes:
                use(source, number)
        end = len(self._work)
        for node in self._results:
            use(node, end - 1 if node in self._free else end)
        return last

    def _are_separate(self, pieces: Sequence[Piece]) -> bool:
        """Whether what goes from one piece to another are tensors with memory of their own."""
        seen: set[int] = set()
        crossing = [node for piece in pieces[:-1] for node in piece.outputs]
        for node in (*self._placeholders, *crossing):
            memory = of.storages(node)
            if not isinstance(node.meta.get("val"), Tensor) or memory & seen:
                return False
            seen |= memory
        return True


def cut(graph: GraphModule) -> tuple[list[GraphModule], Plan]:
    """Distinct parts of a graph, and the program that calls them."""
    cutter = Cutter(graph)
    return cutter.parts(cutter.cut())


def _like_one_of(pieces: Iterable[Piece], other: Piece) -> Piece | None:
    """``other`` with the outputs of an equal piece, which may be more than are read of it."""
    for piece in pieces:
        if piece.does == other.does:
            outputs = [other.nodes[piece.nodes.index(node)] for node in piece.outputs]
            if set(outputs).issuperset(other.outputs):
                return attrs.evolve(other, outputs=outputs)
    return None


def _cost(pieces: Iterable[Piece]) -> int:
    distinct = {piece.form: len(piece.nodes) + _PART for piece in pieces}
    return sum(distinct.values())


def _graph_of(piece: Piece) -> Graph:
    graph = Graph()
    copies: dict[Node, Node] = {}
    for number, node in enumerate(piece.inputs):
        copies[node] = graph.placeholder(f"arg{number}")
        copies[node].meta = dict(node.meta)
    for node in piece.nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output([copies[node] for node in piece.outputs])
    return graph


def _unaliased(node: Node) -> Node:
    while node.target in (torch.ops.aten.alias.default, torch.ops.aten.detach.default):
        node = node.all_input_nodes[0]
    return node
