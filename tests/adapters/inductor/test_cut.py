# SPDX-License-Identifier: Apache-2.0
"""Graphs cut into parts, the parts run as they are, against the function that was traced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import GraphModule

from tests.harness import make_rig
from tests.zoo import save_llama
from trnport.adapters.inductor import lowering, nodes
from trnport.adapters.inductor.cut import cut
from trnport.adapters.inductor.once import compute_once
from trnport.adapters.inductor.plan import Call, Plan, allocate
from trnport.adapters.inductor.state import State

SIZE = 6


class Stack(nn.Module):
    """Layers of several kinds over a residual stream, each with a cache that it writes to.

    Kinds: "a" and "b" are layers with another constant, "c" also writes to what others write to,
    "d" has one weight twice.
    """

    def __init__(self, kinds: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(len(kinds))
        self.kinds = kinds
        for name in ("first", "second"):
            weights = [torch.randn(SIZE, SIZE, generator=generator) / 3 for _ in kinds]
            setattr(self, name, weights)
        tied = zip(kinds, self.first, self.second, strict=True)
        self.second = [first if kind == "d" else second for kind, first, second in tied]
        self.caches = [torch.zeros(4, SIZE) for _ in kinds]

    def forward(self, x: Tensor, slots: Tensor) -> dict[str, Any]:
        mark = torch.zeros(2)
        for kind, *tensors in zip(self.kinds, self.first, self.second, self.caches, strict=True):
            x = self.layer(x, slots, kind, *tensors)
            if kind == "c":
                mark.add_(x[:2, 0])
        return {"x": x, "row": x[1], "slots": slots, "mark": mark, "both": (x, x.T)}

    def layer(self, x: Tensor, slots: Tensor, kind: str, *tensors: Tensor) -> Tensor:
        first, second, cache = tensors
        valid = (slots >= 0)[:, None]
        scale = 0.5 if kind == "b" else 2.0
        for _ in range(10):  # so much that equal layers are worth a cut
            x = x.sin() + 0.1
        x = x * first[0] + second[1]
        y = torch.where(valid, torch.relu(x @ first), 0) + torch.arange(SIZE)
        cache.view(2, 2, SIZE).flatten(0, 1).index_put_((slots.clamp(min=0),), y * scale)
        padded = torch.zeros(4, SIZE)
        padded[:2] = cache[:2]
        return x + (padded[slots.clamp(min=0)] @ second).T.reshape(SIZE, -1).T.tanh()


def parts_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], state: State
) -> tuple[list[GraphModule], Plan, Callable[..., Any]]:
    """Parts of a traced function, the plan of its calls, and a program that interprets them."""
    traced = lowering.trace(function, args, kwargs, state)
    compute_once(traced.graph)
    graphs, plan = cut(traced.graph)
    run = plan.runner([lambda inputs, graph=graph: graph(*inputs) for graph in graphs])

    def program(tensors: list[Tensor]) -> Any:
        return traced.outputs.fill(iter(run([*state.tensors(), *tensors])))

    return graphs, plan, program


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@example(kinds="bababa")
@example(kinds="adadadaad")
@example(kinds="aaaacca")
@given(kinds=st.text("ab", min_size=6, max_size=9))
def test_parts_compute_what_the_function_does(kinds: str) -> None:
    x = torch.linspace(-1, 1, 3 * SIZE).view(3, SIZE)
    slots = torch.tensor([2, -1, 1])
    expected_of, module = Stack(kinds), Stack(kinds)
    graphs, plan, program = parts_of(module, (x, slots), {}, State(module))
    for _ in range(2):
        out, expected = program([x, slots]), expected_of(x, slots)
        torch.testing.assert_close(out, expected, rtol=0, atol=0)
        for mine, other in zip(module.caches, expected_of.caches, strict=True):
            assert torch.equal(mine, other)
    # A tensor that several layers write to would be shared by parts: such a graph stays whole.
    assert len(plan.calls) == 1 if "c" in kinds else len(plan.calls) > len(graphs)


def test_the_middle_of_equal_layers_is_compiled_once_for_any_number() -> None:
    x, slots = torch.ones(3, SIZE), torch.tensor([2, -1, 1])
    sizes = []
    for number in (6, 24):
        module = Stack("a" * number)
        graphs, plan, _ = parts_of(module, (x, slots), {}, State(module))
        sizes.append([len(graph.graph.nodes) for graph in graphs])
        assert len(plan.calls) > number - 1
        # What goes from layer to layer takes the same few places however many there are.
        assert plan.num_values - plan.num_inputs <= 6
    assert sizes[0] == sizes[1]


def test_what_layers_compute_alike_is_computed_once() -> None:
    x, slots = torch.ones(3, SIZE), torch.tensor([2, -1, 1])
    module = Stack("aba")
    traced = lowering.trace(module, (x, slots), {}, State(module))
    comparisons = [n for n in traced.graph.graph.nodes if n.target is torch.ops.aten.ge.Scalar]
    assert len(comparisons) == 3
    compute_once(traced.graph)
    left = [n for n in traced.graph.graph.nodes if n.target is torch.ops.aten.ge.Scalar]
    assert len(left) == 1
    # Each layer has zeros of its own to write to.
    written = [n for n in traced.graph.graph.nodes if n.target is torch.ops.aten.zeros.default]
    assert len(written) == 4


def test_random_numbers_are_never_merged() -> None:
    def draw(x: Tensor) -> Tensor:
        return torch.rand_like(x) + torch.rand_like(x)

    traced = lowering.trace(draw, (torch.ones(3),), {}, State(None))
    compute_once(traced.graph)
    drawn = [n for n in traced.graph.graph.nodes if n.target is torch.ops.aten.rand_like.default]
    assert len(drawn) == 2
    assert not any(nodes.is_free(node) for node in drawn)


# --- models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sliding", [None, 8])
def test_a_model_of_many_layers_has_few_parts(tmp_path: Path, sliding: int | None) -> None:
    save_llama(tmp_path, "untied", num_hidden_layers=5)
    rig = make_rig(tmp_path, max_model_len=24, max_num_seqs=2)
    other = make_rig(tmp_path, max_model_len=24, max_num_seqs=2)
    for each in (rig, other):
        for number, layer in enumerate(each.model.layers):
            layer.self_attn.sliding_window = sliding if number % 2 else None
    state = State(rig.model)
    programs: dict[str, Any] = {}
    kinds: dict[str, int] = {}

    def call(name: str, function: Any, args: Any = (), kwargs: Any = None) -> Any:
        if name not in programs:
            graphs, plan, programs[name] = parts_of(function, args, kwargs, state)
            kinds[name] = len(graphs)
            assert len(plan.calls) >= 6
        tensors, _ = lowering.flatten(args, kwargs)
        return programs[name](tensors)

    rig.executor._programs.call = call
    prompt, forced = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [8, 9, 7]
    assert torch.equal(rig.teacher_forced(prompt, forced), other.teacher_forced(prompt, forced))
    for name, caches in rig.caches.items():
        torch.testing.assert_close(caches, other.caches[name], rtol=0, atol=0, equal_nan=True)
    assert len(programs) == 2
    assert set(kinds.values()) <= {3, 4, 5}


# --- plans ---------------------------------------------------------------------------------------


@given(st.data())
def test_places_are_used_again_only_when_nobody_reads_them(data: st.DataObject) -> None:
    num_inputs = data.draw(st.integers(1, 4))
    calls, values = [], num_inputs
    for _ in range(data.draw(st.integers(1, 8))):
        inputs = tuple(data.draw(st.lists(st.integers(0, values - 1), max_size=4)))
        outputs = tuple(range(values, values + data.draw(st.integers(0, 3))))
        calls.append(Call(0, inputs, outputs))
        values += len(outputs)
    results = data.draw(st.lists(st.integers(0, values - 1), max_size=4))

    def add_up(tensors: list[Tensor], number: int) -> list[Tensor]:
        total = sum((t.sum() for t in tensors), torch.tensor(1.0))
        return [total + number + i for i in range(4)]

    expected = [torch.tensor(float(i)) for i in range(num_inputs)]
    inputs = list(expected)
    for number, call in enumerate(calls):
        expected += add_up([expected[i] for i in call.inputs], number)[: len(call.outputs)]

    numbered = [Call(n, call.inputs, call.outputs) for n, call in enumerate(calls)]
    plan = allocate(num_inputs, numbered, results)
    parts = [
        lambda tensors, n=n, call=call: add_up(tensors, n)[: len(call.outputs)]
        for n, call in enumerate(calls)
    ]
    assert plan.num_values <= values
    assert plan.runner(parts)(inputs) == [expected[i] for i in results]
