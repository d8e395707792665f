# SPDX-License-Identifier: Apache-2.0
"""Compute once for a step what its layers would each compute alike."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from trnport.adapters.inductor import nodes as of


def compute_once(graph: GraphModule) -> None:
    """Merge equal nodes that depend on a step's inputs alone, and move them to the front.

    Masks and indices are made in each layer from the same positions. Inductor merges them by
    itself where it sees all layers.

    Args:
        graph: Changed in place. Nodes that read what some node writes stay as they are.
    """
    written = of.written(graph.graph)
    fixed: set[Node] = set()
    first: dict[Any, Node] = {}
    repeated: set[Node] = set()
    for node in list(graph.graph.nodes):
        if of.storages(node) & written or not fixed.issuperset(node.all_input_nodes):
            continue
        if node.op == "placeholder":
            fixed.add(node)
        elif node.op == "call_function" and of.is_pure(node):
            key = node.target, of.plain(node.args), of.plain(node.kwargs)
            known = first.setdefault(key, node)
            if known is node:
                fixed.add(node)
            else:
                repeated.add(known)
                node.replace_all_uses_with(known)
                graph.graph.erase_node(node)
    _move_to_front(graph, repeated)
    graph.recompile()


def _move_to_front(graph: GraphModule, nodes: set[Node]) -> None:
    wanted = of.reachable(nodes)
    start = next(node for node in graph.graph.nodes if node.op != "placeholder")
    for node in list(graph.graph.nodes):
        if node.op == "placeholder" or node not in wanted:
            continue
        if node is start:
            start = start.next
        else:
            start.prepend(node)
