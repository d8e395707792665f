# SPDX-License-Identifier: Apache-2.0
"""Run graphs before and after the passes and compare what a caller can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from trnport.adapters.neuronx import Rewritten, interpret
from trnport.adapters.neuronx.lowering import aliased
from trnport.adapters.neuronx.passes import (
    AliasingOutputRewrite,
    DeviceRewriter,
    InPlaceToOutOfPlace,
    PassManager,
)


def capture(function: Callable[..., Any], *args: Tensor) -> tuple[GraphModule, list[Any]]:
    """The graph that Dynamo makes of a function, and its inputs, which need not be all of args."""
    found: list[tuple[GraphModule, list[Any]]] = []

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append((gm, [copy(x) for x in inputs]))
        return gm.forward

    def entry(*given: Tensor) -> Any:
        return function(*given)

    entry.__code__ = entry.__code__.replace(co_name="entry")  # a cache of its own
    torch.compile(entry, backend=backend, fullgraph=True, dynamic=False)(*map(copy, args))
    (graph,) = found
    return graph


def build(count: int, write: Callable[..., Any], /, **buffers: Tensor) -> GraphModule:
    """The graph that a function makes by hand, out of (graph, placeholders)."""
    root = torch.nn.Module()
    for name, buffer in buffers.items():
        root.register_buffer(name, buffer)
    graph = Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(count)]
    outputs = write(graph, *inputs)
    graph.output(outputs if isinstance(outputs, tuple) else (outputs,))
    return GraphModule(root, graph)


def copy(x: Any) -> Any:
    """The same content in new memory with the same strides."""
    if not isinstance(x, Tensor):
        return x
    new = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return new.copy_(x)


def assert_same(got: Any, want: Any, what: str) -> None:
    """Bit for bit, NaN equal to NaN."""
    if isinstance(want, Tensor):
        assert got.dtype == want.dtype, what
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=what)
    elif isinstance(want, tuple):
        assert len(got) == len(want), what
        for one, other in zip(got, want, strict=True):
            assert_same(one, other, what)
    else:
        assert got == want, what


def writes_left(gm: GraphModule) -> list[Node]:
    """Nodes whose name says that they change something."""
    calls = [node for node in gm.graph.nodes if node.op.startswith("call")]
    names = {node: str(getattr(node.target, "__name__", node.target)) for node in calls}
    plain = {"and_", "or_"}  # Python's own keywords are in their way
    return [
        node
        for node, name in names.items()
        if name == "setitem" or (name.endswith("_") and name not in plain)
    ]


def check(gm: GraphModule, *args: Any) -> dict[str, Any]:
    """Run every pass; after each, outputs and buffers are those of the graph as it was.

    Returns:
        What the passes found out.
    """
    buffers = [copy(x) for x in args]
    expected = tuple(gm(*buffers))
    facts: dict[str, Any] = {}
    for each in (DeviceRewriter(), AliasingOutputRewrite()):
        facts |= PassManager([each]).run(gm, example_inputs=args)
        given = [copy(x) for x in args]
        outputs = gm(*given)
        for number, output in enumerate(expected):
            assert_same(outputs[number], output, f"output {number} after {each.name}")
        for number, buffer in enumerate(buffers):
            assert_same(given[number], buffer, f"input {number} after {each.name}")
    facts |= PassManager([InPlaceToOutOfPlace()]).run(gm, example_inputs=args)
    check_rewritten(gm, args, expected, buffers, facts)
    return facts


def check_rewritten(
    gm: GraphModule,
    args: Sequence[Any],
    expected: Sequence[Any],
    buffers: Sequence[Any],
    facts: dict[str, Any],
) -> None:
    """The rewritten graph changes nothing; its outputs hold results and final buffers."""
    given = [copy(x) for x in args]
    outputs = gm(*given)
    assert not writes_left(gm), gm.code
    for number, x in enumerate(args):
        assert_same(given[number], x, f"input {number} was changed")
    assert len(expected) == facts["original_output_count"]
    for number, output in enumerate(expected):
        assert_same(outputs[number], output, f"output {number}\n{gm.code}")
    assert len(set(facts["io_map"].values())) == len(facts["io_map"])
    for output, number in facts["io_map"].items():
        assert_same(outputs[output], buffers[number], f"buffer {number}\n{gm.code}")
    for number in set(range(len(args))) - set(facts["io_map"].values()):
        assert_same(buffers[number], args[number], f"buffer {number} is missing in io_map")
    rewritten = Rewritten("step", gm, facts["io_map"], facts["original_output_count"], {}, ())
    results = aliased(rewritten, interpret(rewritten, given))(*given)
    assert_same(results, tuple(expected), f"results over the caller's buffers\n{gm.code}")
    for number, buffer in enumerate(buffers):
        assert_same(given[number], buffer, f"caller's buffer {number}\n{gm.code}")
