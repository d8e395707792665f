# SPDX-License-Identifier: Apache-2.0
"""Random programs of views and changes mean the same after the passes as in eager torch."""

from __future__ import annotations

import operator
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from tests.adapters.neuronx.graphs import check

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def bounds(draw: Any, size: int) -> slice:
    limit = st.none() | st.integers(-size - 1, size + 1)
    return slice(draw(limit), draw(limit), draw(st.sampled_from([None, 1, 2, 3])))


@st.composite
def indices(draw: Any, shape: tuple[int, ...]) -> Any:
    """Integers, slices, None and ``...`` in every order, as many as fit."""
    parts: list[Any] = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        if draw(st.booleans()):
            parts.append(draw(st.integers(-size, size - 1)))
        else:
            parts.append(bounds(draw, size))
        if draw(st.integers(0, 4)) == 0:
            parts.append(None)
    if len(parts) < 2 or draw(st.booleans()):
        parts.append(Ellipsis)
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


@st.composite
def tensor_indices(draw: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Basic entries and at least one tensor of integers or booleans."""
    place = draw(st.integers(0, len(shape) - 1))
    parts: list[Any] = []
    for dim, size in enumerate(shape):
        kind = draw(st.sampled_from(["slice", "integer", "tensor"]))
        if dim == place and draw(st.booleans()):
            parts.append(torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))))
        elif dim == place or kind == "tensor":
            # Equal and distinct entries would write one element twice, in no certain order.
            parts.append(torch.tensor([draw(st.integers(0, size - 1))]))
        else:
            parts.append(
                bounds(draw, size) if kind == "slice" else draw(st.integers(-size, size - 1))
            )
    return tuple(parts)


class Program:
    """A graph under construction, with its tensors at hand to know shapes."""

    def __init__(self, draw: Any, inputs: list[Tensor]) -> None:
        self.draw, self.graph = draw, Graph()
        self.pool = [(self.graph.placeholder(f"x{i}"), x) for i, x in enumerate(inputs)]

    def pick(self) -> tuple[Node, Tensor]:
        return self.draw(st.sampled_from(self.pool))

    def add(self, node: Node, value: Any) -> None:
        if isinstance(value, Tensor):
            self.pool.append((node, value))

    def constant(self, x: Tensor) -> Node:
        flat = self.graph.call_function(torch.tensor, (x.flatten().tolist(),), {"dtype": x.dtype})
        return self.graph.call_method("reshape", (flat, tuple(x.shape)))

    def view(self) -> None:
        (node, x), draw = self.pick(), self.draw
        dim = draw(st.integers(-x.ndim, x.ndim - 1)) if x.ndim else 0
        other = draw(st.integers(-x.ndim, x.ndim - 1)) if x.ndim else 0
        start = draw(st.integers(0, x.shape[dim] - 1)) if x.ndim and x.shape[dim] else 0
        choices: list[tuple[str, tuple[Any, ...]]] = [
            ("unsqueeze", (draw(st.integers(0, x.ndim)),)),
            ("squeeze", ()), ("reshape", (-1,)), ("detach", ()), ("flatten", ()),
            ("contiguous", ()),
        ]  # fmt: skip
        if x.is_contiguous():
            choices.append(("view", (x.numel(),)))
        if x.ndim and x.shape[dim]:
            choices += [("transpose", (dim, other)), ("movedim", (dim, other)),
                        ("select", (dim, start)), ("narrow", (dim, start, x.shape[dim] - start)),
                        ("chunk", (2, dim)), ("unbind", (dim,)), ("split", (2, dim))]  # fmt: skip
        if x.ndim > 1:
            choices.append(("diagonal", (draw(st.integers(-1, 1)),)))
        if not x.numel():
            return
        name, args = draw(st.sampled_from(choices))
        if name == "select" and draw(st.booleans()):
            index = draw(indices(tuple(x.shape)))
            self.add(self.graph.call_function(operator.getitem, (node, index)), x[index])
            return
        made, value = self.graph.call_method(name, (node, *args)), getattr(x, name)(*args)
        if isinstance(value, tuple | list):
            number = draw(st.integers(0, len(value) - 1))
            made = self.graph.call_function(operator.getitem, (made, number))
            value = value[number]
        self.add(made, value)

    def write(self) -> None:
        (node, x), draw = self.pick(), self.draw
        scalar = draw(st.integers(0, 1)) if x.dtype == torch.bool else draw(st.integers(-3, 3))
        kind = draw(st.sampled_from(["setitem", "tensors", "copy", "zero", "fill", "add", "iadd"]))
        number = {torch.bool: bool(scalar)}.get(x.dtype, scalar)
        if kind == "setitem":
            index = draw(indices(tuple(x.shape)))
            self._assign(node, x, index, x[index], number)
        elif kind == "tensors" and x.ndim and x.numel():
            index = draw(tensor_indices(tuple(x.shape)))
            self._assign(node, x, index, None, number)
        elif kind == "copy":
            other, y = self.pick()
            if _fits(y, x):
                source = self.graph.call_method("clone", (other,))
                self.add(self.graph.call_method("copy_", (node, source)), x.copy_(y.clone()))
        elif kind == "zero":
            self.add(self.graph.call_method("zero_", (node,)), x.zero_())
        elif kind == "fill":
            self.add(self.graph.call_function(torch.fill_, (node, number)), torch.fill_(x, number))
        elif kind == "add":
            name = "logical_xor_" if x.dtype == torch.bool else "add_"
            other = self.constant(torch.tensor(number))
            self.add(
                self.graph.call_method(name, (node, other)), getattr(x, name)(torch.tensor(number))
            )
        elif x.dtype != torch.bool:
            self.add(self.graph.call_function(operator.iadd, (node, number)), x.add_(number))

    def _assign(self, node: Node, x: Tensor, index: Any, part: Tensor | None, number: Any) -> None:
        value: Any = number
        if part is not None and self.draw(st.booleans()):
            shape = part.shape[self.draw(st.integers(0, part.ndim)) :]
            count = int(torch.Size(shape).numel())
            data = (torch.arange(count).reshape(shape) + 5).to(torch.float32)
            value = data
        as_node = [self.constant(entry) if isinstance(entry, Tensor) else entry
                   for entry in (index if isinstance(index, tuple) else (index,))]  # fmt: skip
        key = tuple(as_node) if isinstance(index, tuple) else as_node[0]
        given = self.constant(value) if isinstance(value, Tensor) else value
        self.graph.call_function(operator.setitem, (node, key, given))
        x[index] = value

    def compute(self) -> None:
        node, x = self.pick()
        self.add(self.graph.call_method("clone", (node,)), x.clone())


def _fits(y: Tensor, x: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(y.shape, x.shape) == x.shape
    except RuntimeError:
        return False


@st.composite
def programs(draw: Any) -> tuple[GraphModule, list[Tensor]]:
    inputs = []
    for number in range(draw(st.integers(1, 2))):
        shape = draw(SIZES)
        count = int(torch.Size(shape).numel())
        x = (torch.arange(count).reshape(shape) + 10 * number - 3).to(draw(st.sampled_from(DTYPES)))
        inputs.append(x.transpose(0, -1) if draw(st.booleans()) else x)
    program = Program(draw, [x.clone() for x in inputs])
    steps = draw(st.lists(st.sampled_from(["view", "view", "write", "write", "compute"]),
                          min_size=2, max_size=9))  # fmt: skip
    for step in steps:
        getattr(program, step)()
    nodes = [node for node, _ in program.pool]
    kept = draw(st.lists(st.sampled_from(nodes), max_size=4))
    program.graph.output(tuple(kept))
    return GraphModule(torch.nn.Module(), program.graph), inputs


@given(programs())
@settings(max_examples=150, deadline=None)
def test_random_programs_mean_the_same(program: tuple[GraphModule, list[Tensor]]) -> None:
    gm, inputs = program
    check(gm, *inputs)
