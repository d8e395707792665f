# SPDX-License-Identifier: Apache-2.0
"""Give every kernel in a graph the settings that its backend wants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch.fx import GraphModule, Node

from trnport.adapters.neuronx.passes.functional import functional_operator
from trnport.adapters.neuronx.passes.writes import schema_of

CONFIG = "backend_config"
"""Key in a kernel node's meta: a JSON object as text, keys sorted, equal for equal kernels."""

GIVEN = "kernel_config"
"""Key in a node's meta under which whoever made the node left settings of its own."""


class KernelBackendConfig:
    """Writes a kernel's name, its settings and what it changes on its node.

    A lowering then needs no knowledge of operators: it passes the text on. Of what a kernel
    changes the text says which output belongs in which operand's buffer.
    """

    name = "kernel_backend_config"

    def run(
        self,
        gm: GraphModule,
        *,
        kernel_namespaces: tuple[str, ...] = ("trnport_nki",),
        kernel_config: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Mapping[str, Any]:
        """Set ``meta["backend_config"]``; the graph computes what it did.

        Args:
            gm: The graph.
            kernel_namespaces: Namespaces of torch.library whose operators are kernels.
            kernel_config: Settings of all kernels; a node's own, in ``meta["kernel_config"]``,
                win.

        Returns:
            ``kernels``: number of kernel nodes.
        """
        count = 0
        for node in gm.graph.nodes:
            name, aliases = _kernel(node)
            if name.partition("::")[0] in kernel_namespaces or GIVEN in node.meta:
                settings = {**(kernel_config or {}), **node.meta.get(GIVEN, {})}
                config = {"kernel": name, "settings": settings, "aliases": aliases}
                node.meta[CONFIG] = json.dumps(config, sort_keys=True)
                count += 1
        return {"kernels": count}


def _kernel(node: Node) -> tuple[str, dict[str, int]]:
    """An operator's full name, and changed operand to output number."""
    if node.op != "call_function":
        return str(node.target), {}
    if node.target is not functional_operator:
        schema = schema_of(node)
        return (schema.name if schema else getattr(node.target, "__name__", "")), {}
    op: Any = node.args[0]
    written: Any = node.args[1]
    aliases = {name: len(op._schema.returns) + i for i, name in enumerate(written)}
    return op._schema.name, aliases
