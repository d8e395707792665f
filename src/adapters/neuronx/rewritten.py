# SPDX-License-Identifier: Apache-2.0
"""A graph after the passes, what a backend has to know about it, and its key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from trnport.adapters.neuronx.capture import check_disjoint, merge_shared_inputs
from trnport.adapters.neuronx.passes import PassManager, default_passes
from trnport.adapters.neuronx.passes.kernel_config import CONFIG
from trnport.core.errors import CompilationError


@attrs.frozen(eq=False)
class Rewritten:
    """A graph in which nothing changes a tensor.

    Attributes:
        name: Name of the program.
        gm: The graph; its outputs are a flat tuple.
        io_map: Output number to the number of the input in whose buffer it belongs.
        original_output_count: How many outputs the caller gets; others are buffers only.
        group_names: Group of a collective in the graph to the process group's name.
        inputs: Type of each input: dtype, shape and strides of a tensor.
    """

    name: str
    gm: GraphModule
    io_map: Mapping[int, int]
    original_output_count: int
    group_names: Mapping[str, str]
    inputs: tuple[str, ...]

    def key(self, *others: str) -> str:
        """SHA-256 of everything about the graph that changes the compiled program.

        Names of nodes and numbers of devices do not count: ranks and replicas share a key.

        Args:
            others: What else changes it, such as versions and flags.
        """
        aliases = repr(sorted(self.io_map.items()))
        text = "\0".join((*others, aliases, *self.inputs, *_lines(self.gm)))
        return hashlib.sha256(text.encode()).hexdigest()


def rewrite(
    name: str,
    gm: GraphModule,
    inputs: Sequence[Any],
    passes: PassManager | None = None,
    **options: Any,
) -> Rewritten:
    """Run the passes on a captured graph, in place.

    Args:
        name: Name of the program.
        gm: The graph.
        inputs: Examples of its inputs; which of them share memory counts.
        passes: The passes; all of them when None.
        options: For the passes, such as ``target_device`` and ``groups``.

    Raises:
        CompilationError: Something in the graph cannot be rewritten; the message names it.
    """
    try:
        merge_shared_inputs(gm, inputs)
        facts = (passes or default_passes()).run(gm, example_inputs=tuple(inputs), **options)
        check_disjoint(inputs, facts["mutated_inputs"], name)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise CompilationError(f"program {name!r} cannot be rewritten: {error}") from error
    return Rewritten(
        name=name,
        gm=gm,
        io_map=MappingProxyType(dict(facts["io_map"])),
        original_output_count=facts["original_output_count"],
        group_names=MappingProxyType(dict(facts.get("group_names", {}))),
        inputs=tuple(map(_type, inputs)),
    )


def _type(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{value.dtype}{tuple(value.shape)}{value.stride()}"


def _lines(gm: GraphModule) -> list[str]:
    """One line per node, in which nodes are numbers."""
    numbers = {node: f"%{i}" for i, node in enumerate(gm.graph.nodes)}

    def plain(argument: Any) -> Any:
        if isinstance(argument, Node):
            return numbers[argument]
        if isinstance(argument, torch.device):
            return argument.type
        return _qualified(argument) if callable(argument) else argument

    lines = []
    for node in gm.graph.nodes:
        target = "" if node.op == "placeholder" else _qualified(node.target)
        args = map_aggregate((node.args, dict(sorted(node.kwargs.items()))), plain)
        constant = _content(value_of_attribute(gm, node)) if node.op == "get_attr" else ""
        lines.append(f"{node.op} {target} {args} {node.meta.get(CONFIG, '')}{constant}")
    return lines


def value_of_attribute(gm: GraphModule, node: Node) -> Any:
    """What a ``get_attr`` node stands for."""
    found: Any = gm
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _content(value: Any) -> str:
    """A constant of the graph; its bytes are part of the program."""
    if not isinstance(value, Tensor):
        return repr(value)
    data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{_type(value)}{hashlib.sha256(data).hexdigest()}"


def _qualified(target: Any) -> str:
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target)
    module = getattr(target, "__module__", None) or ""
    return f"{module}.{getattr(target, '__qualname__', repr(target))}"
