# SPDX-License-Identifier: Apache-2.0
"""What a graph pass is, and running several in order."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import structlog
from torch.fx import GraphModule

_log = structlog.get_logger(__name__)


class FXPass(Protocol):
    """One rewrite of a graph."""

    @property
    def name(self) -> str:
        """Name for logs and errors."""

    def run(self, gm: GraphModule, **options: Any) -> Mapping[str, Any]:
        """Rewrite the graph of ``gm`` in place.

        Args:
            gm: The graph, with static shapes.
            options: Those of the whole run; a pass takes what it knows and ignores the rest.

        Returns:
            What later stages have to know, by name; often nothing.

        Raises:
            NotImplementedError: The graph holds something the pass cannot rewrite faithfully;
                the message names the node.
        """


class PassManager:
    """Runs passes in a fixed order.

    Args:
        passes: The passes, first one first.
    """

    def __init__(self, passes: Sequence[FXPass]) -> None:
        self._passes = tuple(passes)

    @property
    def names(self) -> tuple[str, ...]:
        """The passes' names in order."""
        return tuple(each.name for each in self._passes)

    def run(self, gm: GraphModule, **options: Any) -> dict[str, Any]:
        """Run every pass on ``gm`` and collect what they return.

        The time of each is logged at debug level.
        """
        facts: dict[str, Any] = {}
        for each in self._passes:
            before, started = len(gm.graph.nodes), time.perf_counter()
            facts |= each.run(gm, **options)
            gm.graph.lint()
            gm.recompile()
            _log.debug(
                "graph pass",
                name=each.name,
                milliseconds=round(1000 * (time.perf_counter() - started), 1),
                nodes_before=before,
                nodes_after=len(gm.graph.nodes),
            )
        return facts
