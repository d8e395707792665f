# SPDX-License-Identifier: Apache-2.0
"""Replace names of process groups by who is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from trnport.adapters.neuronx.passes.writes import bind, schema_of

GROUPS = "replica_groups"
"""Key in a collective node's meta: tuple of groups, each a tuple of ranks."""

ARGUMENTS = ("group_name", "group")
"""Arguments by which a collective names its group."""


class CollectiveReplicaGroups:
    """Writes groups as lists of ranks, counted from the replica's first rank.

    Names of process groups depend on the order in which a process made them, and global ranks
    on the replica. Two replicas of a model that run the same program would get two programs.
    """

    name = "collective_replica_groups"

    def run(
        self,
        gm: GraphModule,
        *,
        groups: Mapping[str, Sequence[Sequence[int]]] | None = None,
        replica_ranks: Sequence[int] | None = None,
        **_: Any,
    ) -> Mapping[str, Any]:
        """Rewrite the group argument of every collective.

        Args:
            gm: The graph.
            groups: Group name to all groups that work side by side with it, as global ranks;
                they cover the replica.
            replica_ranks: Global ranks of this replica, ascending; all ranks in ``groups``
                when None.

        Returns:
            ``group_names``: the text in the graph to the name it replaced, by which a process
            finds its group at run time.

        Raises:
            ValueError: A collective names a group that ``groups`` does not have.
        """
        known = groups or {}
        ranks = replica_ranks or sorted({r for lists in known.values() for g in lists for r in g})
        names: dict[str, str] = {}
        for node in gm.graph.nodes:
            argument = _group_argument(node)
            if argument is None:
                continue
            position, name = argument
            if name not in known:
                raise ValueError(
                    f"{node.format_node()}: no group is called {name!r}; there are {sorted(known)}"
                )
            node.meta[GROUPS], text = _relative(known[name], ranks)
            _replace(node, position, text)
            names[text] = name
        gm.recompile()
        return {"group_names": names}


def restore_group_names(gm: GraphModule, group_names: Mapping[str, str]) -> None:
    """Name this process's groups in the graph again, for whoever looks groups up by name.

    Args:
        gm: A graph after the pass; the lists stay in ``meta["replica_groups"]``.
        group_names: What the pass returned.
    """
    for node in gm.graph.nodes:
        argument = _group_argument(node) if GROUPS in node.meta else None
        if argument is not None:
            position, text = argument
            _replace(node, position, group_names.get(text, text))
    gm.recompile()


def _relative(
    groups: Sequence[Sequence[int]], replica: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...], str]:
    """Groups as the graph has them, and their text.

    A group that reaches beyond the replica keeps global ranks: it means the same everywhere.
    """
    own = {rank: i for i, rank in enumerate(replica)}
    members = {rank for group in groups for rank in group}
    if members <= set(own):
        lists, scope = tuple(tuple(own[rank] for rank in group) for group in groups), "replica"
    else:
        lists, scope = tuple(tuple(group) for group in groups), "world"
    return lists, f"{scope}:" + ";".join(",".join(map(str, group)) for group in lists)


def _group_argument(node: Node) -> tuple[int | str, str] | None:
    """Position or keyword of a collective's group name, and the name."""
    schema = schema_of(node) if node.op == "call_function" else None
    if schema is None:
        return None
    bound = bind(schema, node)
    for position, argument in enumerate(schema.arguments):
        if argument.name in ARGUMENTS and isinstance(bound[argument.name], str):
            is_keyword = argument.name in node.kwargs
            return (argument.name if is_keyword else position), bound[argument.name]
    return None


def _replace(node: Node, position: int | str, text: str) -> None:
    if isinstance(position, str):
        node.kwargs = {**node.kwargs, position: text}
    else:
        node.args = (*node.args[:position], text, *node.args[position + 1 :])
