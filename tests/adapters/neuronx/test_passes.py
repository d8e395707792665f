# SPDX-License-Identifier: Apache-2.0
"""Each form of change, view and output, captured from code: results and buffers stay."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import symbolic_trace
from torch.nn import functional as F

from tests.adapters.neuronx.graphs import assert_same, build, capture, check, writes_left
from trnport.adapters.neuronx import NeuronxCompiler, interpret
from trnport.adapters.neuronx.passes import (
    AliasingOutputRewrite,
    DeviceRewriter,
    InPlaceToOutOfPlace,
    PassManager,
)
from trnport.adapters.neuronx.passes.aliasing import ROOT_INPUT


def square() -> Tensor:
    return torch.arange(20.0).reshape(4, 5) - 7


def row() -> Tensor:
    return torch.arange(5.0) + 100


def plane() -> Tensor:
    return torch.arange(24, dtype=torch.bfloat16).reshape(2, 3, 4)


def twice(x: Tensor, y: Tensor) -> Any:
    x.add_(y)
    x.mul_(2)
    return x.sum(), y


def view_of_view(x: Tensor, y: Tensor) -> Any:
    inner = x.transpose(0, 1)[1:4].unsqueeze(0)[:, :, 2]
    inner.copy_(y[:3] * 0 + 9)
    return x[:, 1], inner


def read_before_and_after(x: Tensor, y: Tensor) -> Any:
    early, copied = x[1], x[1].clone()
    x[1] = y
    return early, copied, early + copied


def sibling_views(x: Tensor, y: Tensor) -> Any:
    flat, first = x.view(-1), x[0]
    flat[2:4] = 50
    first += y
    return flat, first


def dead(x: Tensor, y: Tensor) -> Any:
    temporary = x * 2
    temporary.zero_()
    y.clone()[0] = 3
    return x + y


def internal(x: Tensor, y: Tensor) -> Any:
    result = torch.zeros(4, 5)
    result[1:3] = x[1:3]
    result[:, 0].fill_(y[1])
    return result


def pass_through(x: Tensor, y: Tensor) -> Any:
    return x, y, x.detach(), x.view(5, 4).view(4, 5), x.t(), x[1:]


def returned_twice(x: Tensor, y: Tensor) -> Any:
    x += y
    return x, x, x.relu()


def parts(x: Tensor, y: Tensor) -> Any:
    left, right = x.split([2, 3], dim=1)
    left.mul_(right[:, :2])
    first, *_ = x.unbind(0)
    first.sub_(y)
    _, low = torch.chunk(x, 2)
    low[0, 0] = -1
    return left, right


def augmented(x: Tensor, y: Tensor) -> Any:
    x -= y
    x /= 4
    x //= 2
    x **= 2
    x %= 7
    return x


def integers(x: Tensor, y: Tensor) -> Any:
    whole = (x * 3).long()
    whole |= 5
    whole <<= 1
    whole ^= 3
    whole &= 60
    whole >>= 1
    return whole


def swapped(x: Tensor, y: Tensor) -> Any:
    first = x[0].clone()
    x[0] = x[1]
    x[1] = first
    x[2], x[3] = x[3], x[2]
    return x.sum(0)


def out_arguments(x: Tensor, y: Tensor) -> Any:
    torch.add(x, y, out=x)
    values, places = torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.int64)
    torch.topk(x, 2, out=(values, places))
    return values, places


def flags(x: Tensor, y: Tensor) -> Any:
    F.relu(x, inplace=True)
    F.leaky_relu_(y, 0.5)
    torch.clamp_(y, 0, 102)
    return x + y


def gathered(x: Tensor, y: Tensor) -> Any:
    rows = torch.tensor([2, 0])
    x.index_copy_(0, rows, torch.stack([y, y + 1]))
    x.index_put_((rows, rows), torch.tensor(7.0))
    x[:, rows] = y[:2]
    x[rows, 3] = 8
    x[1:, rows][0] = 1000  # a copy: nothing is written
    return x


def masks(x: Tensor, y: Tensor) -> Any:
    x[x > 5] = 0
    x[:, y > 102] = -2
    x[x[:, 0] < 0] = y
    y.masked_fill_(y == 100, 1)
    return x.sum()


def promoted(x: Tensor, y: Tensor) -> Any:
    small = x.bfloat16()
    small.add_(y)
    small[0] = y
    small.gt_(3)
    return small


def diagonals(x: Tensor, y: Tensor) -> Any:
    x.diagonal(1).fill_(3)
    torch.diagonal(x[:, :4]).add_(y[:4])
    return x.movedim(0, 1)


def whole(x: Tensor, y: Tensor) -> Any:
    x[...] = y
    y[:] = 4
    y[()] += 1
    return x


def zero_dimensions(x: Tensor, y: Tensor) -> Any:
    total = x.sum()
    total.add_(1)
    total.copy_(total * 2)
    total[()] = total + 1
    return total


def leading_ones(x: Tensor, y: Tensor) -> Any:
    x[1] = y[None, None]
    x[torch.tensor([0, 2])] = y[None, None, None]
    x.T[None, :, None, 1] = 6
    return x


def stored_then_viewed(x: Tensor, y: Tensor) -> Any:
    x[:] = torch.arange(20.0).reshape(5, 4).t()
    x.view(-1)[3] = 70
    return x.view(2, 10)


def from_the_end(x: Tensor, y: Tensor) -> Any:
    x.narrow(-1, 1, 2).zero_()
    x.select(-1, -1).copy_(y[:4])
    x.narrow(0, -2, 1).add_(1)
    x.split(2, dim=-1)[-1].mul_(3)
    x.split([1, 3, 1], dim=-1)[2].add_(2)
    return x.unbind(-1)[-2]


def rotated(x: Tensor, y: Tensor) -> Any:
    x.view(2, 2, 5).permute(2, 0, 1)[1:3, 0].sub_(y[:2])
    return x.unflatten(0, (2, 2)).movedim(0, 2)


CASES = [
    twice, view_of_view, stored_then_viewed, read_before_and_after, sibling_views, dead,
    internal, pass_through, returned_twice, parts, augmented, integers, swapped, out_arguments,
    flags, gathered, masks, promoted, diagonals, rotated, from_the_end, whole,
    zero_dimensions, leading_ones,
]  # fmt: skip


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_code_means_the_same_after_the_passes(function: Callable[..., Any]) -> None:
    gm, inputs = capture(function, square(), row())
    check(gm, *inputs)

    x, y, own_x, own_y = square(), row(), square(), row()
    program = NeuronxCompiler(lower=interpret).compile("step", function, (x, y))
    got, want = program(own_x, own_y), function(x, y)
    assert_same((own_x, own_y), (x, y), "arguments")
    assert_same(got, want, "results")


def test_an_input_that_is_returned_is_its_buffer() -> None:
    gm = symbolic_trace(pass_through)
    facts = check(gm, square(), row())
    assert facts["io_map"] == {0: 0, 1: 1} and facts["mutated_inputs"] == ()


@pytest.mark.parametrize("start", [None, 0, 1, 3, -2, -9, 4])
@pytest.mark.parametrize("stop", [None, 2, 4, -1, 9])
@pytest.mark.parametrize("step", [None, 2, 3])
@pytest.mark.parametrize("dim", [0, 2])
def test_every_kind_of_slice(
    start: int | None, stop: int | None, step: int | None, dim: int
) -> None:
    index = (*[slice(None)] * dim, slice(start, stop, step))
    gm = build(1, lambda g, x: (g.call_function(operator.setitem, (x, index, 77)), x)[1:])
    check(gm, plane())


@pytest.mark.parametrize("x", [
    torch.tensor([[1, 2], [3, 4]]), torch.tensor([[True, False], [False, True]]),
    torch.ones(2, 2, dtype=torch.float16), torch.full((2, 2), float("nan")),
    torch.ones(2, 2, dtype=torch.uint8), torch.ones(2, 2, dtype=torch.float8_e4m3fn),
], ids=lambda x: str(x.dtype))  # fmt: skip
def test_dtypes_are_kept(x: Tensor) -> None:
    # float8 knows no scatter; a copy of everything is all that is asked of it.
    index: Any = slice(None) if x.dtype == torch.float8_e4m3fn else (slice(1, None), 1)
    gm = build(1, lambda g, x: (g.call_function(operator.setitem, (x, index, 1)), x)[1:])
    check(gm, x)


def test_strides_that_the_caller_chose_do_not_matter() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        x[1:, 2] = 5
        x.t().mul_(2)
        return x.flatten(), y

    gm, inputs = capture(function, square().t().contiguous().t(), row())
    assert not inputs[0].is_contiguous()
    check(gm, *inputs)


def test_changed_tensors_are_named_after_the_input() -> None:
    gm = build(1, lambda g, x: (g.call_method("add_", (x, 1)), g.call_method("mul_", (x, 2))))
    PassManager([AliasingOutputRewrite(), InPlaceToOutOfPlace()]).run(gm, example_inputs=[row()])
    assert [n.name for n in gm.graph.nodes if n.op != "output"] == [
        "x0", "x0_modified", "x0_modified_1",
    ]  # fmt: skip


def test_the_change_notes_its_input_and_the_map_has_one_output_per_input() -> None:
    gm, _ = capture(view_of_view, square(), row())
    facts = AliasingOutputRewrite().run(gm)
    assert facts == {"io_map": {2: 0}, "original_output_count": 2, "mutated_inputs": (0,)}
    assert [n.meta[ROOT_INPUT] for n in writes_left(gm)] == [(0,)]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(("write", "problem"), [
    (lambda g, x: g.call_method("unsqueeze_", (x, 0)), "use unsqueeze and its result"),
    (lambda g, x: g.call_method("uniform_", (x,)), "uniform_ has no functional form"),
    (lambda g, x: g.call_method("fill_diagonal_", (x, 1)), "no functional form fill_diagonal"),
    (lambda g, x: g.call_function(operator.setitem, (x, [0, 1], 1)), "list is not supported"),
    (lambda g, x: g.call_function(operator.setitem, (x, True, 1)), "bool is not supported"),
    (lambda g, x: g.call_function(torch._foreach_add_, ([x], 1)), "changes an argument in place"),
    (lambda g, x: g.call_method("fill_", (g.call_method("view", (x, torch.int32)), 1)),
     "cannot be written back"),
])  # fmt: skip
def test_what_cannot_be_rewritten_is_refused_by_name(write: Any, problem: str) -> None:
    gm = build(1, lambda g, x: (write(g, x), x))
    with pytest.raises(NotImplementedError, match=problem):
        PassManager([InPlaceToOutOfPlace()]).run(gm, example_inputs=[square()])


def test_a_constant_of_the_graph_cannot_change() -> None:
    def write(g: Any, x: Any) -> Any:
        return g.call_method("add_", (g.get_attr("count"), 1)), x

    gm = build(1, write, count=torch.zeros(3))
    with pytest.raises(NotImplementedError, match="count, a constant of the graph"):
        AliasingOutputRewrite().run(gm, example_inputs=[torch.ones(3)])


def test_shapes_have_to_be_known() -> None:
    gm = build(1, lambda g, x: (g.call_method("add_", (x, 1)),))
    with pytest.raises(ValueError, match="example_inputs"):
        InPlaceToOutOfPlace().run(gm)
    with pytest.raises(ValueError, match="takes 1, got 2"):
        InPlaceToOutOfPlace().run(gm, example_inputs=[row(), row()])


def test_nested_outputs_are_refused() -> None:
    gm = build(1, lambda g, x: ([x, x],))
    with pytest.raises(TypeError, match="nested"):
        AliasingOutputRewrite().run(gm, example_inputs=[row()])


# --- devices --------------------------------------------------------------------------------------


def test_devices_are_replaced_in_the_form_they_had() -> None:
    def make(g: Any, x: Any) -> Any:
        text = g.call_function(torch.zeros, (2,), {"device": "cuda:1"})
        held = g.call_function(torch.ones, (2,), {"device": torch.device("cpu")})
        moved = g.call_method("to", (x, torch.device("cpu")))
        return text, held, moved

    gm = build(1, make)
    facts = DeviceRewriter().run(gm, target_device="meta")
    text, held, moved = [n for n in gm.graph.nodes if n.op.startswith("call")]
    assert text.kwargs == {"device": "meta"}
    assert held.kwargs == {"device": torch.device("meta")}
    assert moved.args[1] == torch.device("meta")
    assert facts == {"rewritten_devices": 3}
    assert DeviceRewriter().run(gm, target_device="meta") == {"rewritten_devices": 0}


def test_the_rewritten_graph_runs_on_the_target() -> None:
    gm, _ = capture(lambda x: x + torch.arange(5, device=x.device), row())
    DeviceRewriter().run(gm, target_device="meta")
    (result,) = gm(row().to("meta"))
    assert result.device.type == "meta" and result.shape == (5,)


def test_other_passes_do_not_need_the_target_to_exist() -> None:
    def function(x: Tensor) -> Tensor:
        x[1:] = torch.zeros(4, device=x.device)
        return x + torch.arange(5, device=x.device)

    gm, _ = capture(function, row())
    passes = PassManager([DeviceRewriter(), AliasingOutputRewrite(), InPlaceToOutOfPlace()])
    facts = passes.run(gm, target_device="xla:0", example_inputs=[row()])
    devices = {n.kwargs["device"] for n in gm.graph.nodes if "device" in n.kwargs}
    assert devices == {torch.device("xla:0")} and facts["io_map"] == {1: 0}


def test_the_manager_logs_the_time_of_each_pass() -> None:
    from structlog.testing import capture_logs

    gm = build(1, lambda g, x: (g.call_method("add_", (x, 1)),))
    with capture_logs() as logs:
        PassManager([DeviceRewriter(), InPlaceToOutOfPlace()]).run(gm, example_inputs=[row()])
    assert [log["name"] for log in logs] == ["device_rewriter", "in_place_to_out_of_place"]
    assert all(log["log_level"] == "debug" and log["milliseconds"] >= 0 for log in logs)
