# SPDX-License-Identifier: Apache-2.0
"""Make every tensor of a graph on the target device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node


class DeviceRewriter:
    """Replaces the devices that tracing froze into a graph.

    A model traced on one device and run on another would make its constants on the first.
    The form is kept: a string stays a string, a device object stays one.
    """

    name = "device_rewriter"

    def run(
        self, gm: GraphModule, *, target_device: str | torch.device = "cpu", **_: Any
    ) -> Mapping[str, Any]:
        """Rewrite ``device`` arguments, and device objects wherever a call takes them.

        Args:
            gm: The graph.
            target_device: Where everything goes.

        Returns:
            ``rewritten_devices``: number of nodes that changed.
        """
        target = torch.device(target_device)
        count = sum(_rewrite(node, target) for node in gm.graph.nodes)
        gm.recompile()
        return {"rewritten_devices": count}


def _rewrite(node: Node, target: torch.device) -> bool:
    args = tuple(target if isinstance(value, torch.device) else value for value in node.args)
    kwargs = {
        name: _in_form(value, target) if _is_device(name, value) else value
        for name, value in node.kwargs.items()
    }
    changed = args != node.args or kwargs != node.kwargs
    if changed:
        node.args, node.kwargs = args, kwargs
    return changed


def _is_device(name: str, value: Any) -> bool:
    return isinstance(value, torch.device) or (name == "device" and isinstance(value, str))


def _in_form(value: Any, target: torch.device) -> Any:
    return str(target) if isinstance(value, str) else target
