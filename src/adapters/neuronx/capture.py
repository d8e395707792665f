# SPDX-License-Identifier: Apache-2.0
"""From a call of a function to a graph, through torch's own tracer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch.fx import GraphModule

from trnport.core.errors import TrnportError

Backend = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
"""Given a graph and examples of its inputs, what runs in its place."""


def traced(name: str, function: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    """A callable that traces the function when it is first called.

    The whole call is one graph with static shapes, or tracing fails. Numbers that are no tensors
    are part of the graph.

    Args:
        name: Name of the program, for messages.
        function: What to trace.
        backend: Gets the graph; not called for a function without tensor operators.

    Returns:
        The callable. Whatever the function does besides tensor operators happens at each call.
    """

    def entry(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # The tracer keeps what it knows per code object and stops after a few programs of one.
    entry.__code__ = entry.__code__.replace(co_name=name)
    compiled = torch.compile(entry, backend=backend, fullgraph=True, dynamic=False)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except BackendCompilerFailed as failure:
            if isinstance(failure.inner_exception, TrnportError):
                raise failure.inner_exception from None
            raise

    return call


def merge_shared_inputs(gm: GraphModule, inputs: Sequence[Any]) -> None:
    """Let inputs that are the same memory, element for element, be one input.

    Layers may share a cache. As two inputs, what is written to one would not be read from the
    other. Every placeholder stays; the later ones of equal memory are no longer used.

    Args:
        gm: The graph.
        inputs: Its inputs.
    """
    first: dict[tuple[Any, ...], Any] = {}
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, value in zip(nodes, inputs, strict=True):
        if isinstance(value, Tensor) and value.device.type != "meta":
            known = first.setdefault(_place(value), node)
            if known is not node:
                node.replace_all_uses_with(known)
    gm.recompile()


def check_disjoint(inputs: Sequence[Any], mutated: Sequence[int], name: str) -> None:
    """Refuse inputs of which one changes and another lies in the same memory, but not equally.

    Args:
        inputs: Inputs of the graph.
        mutated: Numbers of those that change.
        name: Name of the program.

    Raises:
        NotImplementedError: There is such a pair.
    """
    extents = [_extent(x) if isinstance(x, Tensor) else None for x in inputs]
    for number in mutated:
        changed = inputs[number]
        for other, value in enumerate(inputs):
            if other == number or not isinstance(value, Tensor) or changed.device.type == "meta":
                continue
            if _place(value) == _place(changed):
                continue
            if _overlap(extents[number], extents[other]):
                raise NotImplementedError(
                    f"program {name!r} changes input {number}, whose memory overlaps that of "
                    f"input {other} in another shape or place; give it separate tensors"
                )


def _place(x: Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), tuple(x.shape), x.stride(), x.dtype


def _extent(x: Tensor) -> tuple[int, int]:
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (span if x.numel() else 0) * x.element_size()


def _overlap(a: tuple[int, int] | None, b: tuple[int, int] | None) -> bool:
    return a is not None and b is not None and a[0] < b[1] and b[0] < a[1]
