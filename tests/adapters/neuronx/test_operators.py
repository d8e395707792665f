# SPDX-License-Identifier: Apache-2.0
"""Operators of torch.library that change arguments, kernels, and process groups by ranks."""

from __future__ import annotations

import json
import operator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from tests.adapters.neuronx.graphs import build, capture, check
from trnport.adapters.neuronx.passes import (
    CollectiveReplicaGroups,
    InPlaceToOutOfPlace,
    KernelBackendConfig,
    PassManager,
    default_passes,
)
from trnport.adapters.neuronx.passes.functional import functional_operator


@torch.library.custom_op("trnport_test::put", mutates_args=("cache", "count"))
def put(rows: Tensor, cache: Tensor, slots: Tensor, count: Tensor, scale: float = 1.0) -> Tensor:
    """Write rows into a cache, count them, and return their sum."""
    cache.view(-1, cache.shape[-1])[slots] = rows * scale
    count += len(slots)
    return rows.sum(0)


@put.register_fake
def _(rows: Tensor, cache: Tensor, slots: Tensor, count: Tensor, scale: float = 1.0) -> Tensor:
    return rows.new_empty(rows.shape[1:])


@torch.library.custom_op("trnport_test::clear", mutates_args=("x",))
def clear(x: Tensor, other: Tensor | None = None) -> None:
    """Fill with zeros."""
    x.zero_()


@clear.register_fake
def _(x: Tensor, other: Tensor | None = None) -> None:
    return None


@torch.library.custom_op("trnport_test::pair", mutates_args=("a", "b"))
def pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Add 1 and 2; return both sums."""
    a += 1
    b += 2
    return a.sum(), b.sum()


@pair.register_fake
def _(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return a.new_empty(()), b.new_empty(())


@torch.library.custom_op("trnport_test::sum_ranks", mutates_args=())
def sum_ranks(x: Tensor, group_name: str) -> Tensor:
    """A collective of a group whose name says nothing; here every rank has the same."""
    return x * (1 + group_name.count(","))


@sum_ranks.register_fake
def _(x: Tensor, group_name: str) -> Tensor:
    return torch.empty_like(x)


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, cache = torch.arange(6.0).reshape(2, 3), torch.full((2, 2, 2, 3), torch.nan)
    return rows, cache, torch.tensor([3, 0]), torch.zeros(1)


def write_twice(rows: Tensor, cache: Tensor, slots: Tensor, count: Tensor) -> Any:
    """Both halves of a cache, through views."""
    first = put(rows, cache[0], slots, count)
    second = put(rows + 1, cache.select(0, 1), slots + 0, count=count, scale=2.0)
    clear(cache[0, 1])
    return first + second, count * 2


def test_an_operator_that_writes_through_views() -> None:
    gm, given = capture(write_twice, *inputs())
    facts = check(gm, *given)
    assert facts["rewritten_writes"] == 3
    calls = [n for n in gm.graph.nodes if n.target is functional_operator]
    assert [n.args[1] for n in calls] == [("cache", "count"), ("cache", "count"), ("x",)]


def test_operators_with_no_and_with_two_results() -> None:
    def function(a: Tensor, b: Tensor) -> Any:
        one, two = pair(a, b.t()[0])
        clear(a)
        return one, two, b + a[0]

    gm, given = capture(function, torch.ones(3), torch.zeros(2, 3))
    check(gm, *given)


@pytest.mark.parametrize(
    "target", [torch.ops.trnport_test.clear, torch.ops.trnport_test.clear.default]
)
def test_both_ways_to_name_an_operator(target: Any) -> None:
    gm = build(1, lambda g, x: (g.call_function(target, (x,)), g.call_method("add", (x, 1)))[1:])
    assert check(gm, torch.ones(3))["io_map"] == {1: 0}


def test_torchs_own_overloads() -> None:
    aten = torch.ops.aten

    def make(g: Any, x: Any) -> Any:
        g.call_function(aten.add_.Tensor, (x, 2), {"alpha": 3})
        g.call_function(aten.zero_.default, (g.call_function(aten.select.int, (x, 0, 1)),))
        row = g.call_function(aten.slice.Tensor, (x, 1, -2, 9223372036854775807))
        turned = g.call_function(aten.transpose.int, (row, 0, 1))
        g.call_function(aten.copy_.default, (turned, g.call_function(aten.ones.default, ([3],))))
        g.call_function(aten.fill_.Scalar, (g.call_function(aten.narrow.default, (x, 0, 0, 1)), 9))
        g.call_function(aten.mul_, (x, 5))
        return (g.call_function(aten.permute.default, (x, [1, 0])),)

    check(build(1, make), torch.arange(12.0).reshape(3, 4))


def test_a_form_without_functional_operator_is_refused() -> None:
    out = torch.ops.aten.add.out
    gm = build(1, lambda g, x: (g.call_function(out, (x, x), {"out": x}),))
    with pytest.raises(NotImplementedError, match="add has no functional form"):
        InPlaceToOutOfPlace().run(gm, example_inputs=[torch.ones(3)])


def test_two_written_arguments_that_may_overlap_are_refused() -> None:
    def make(g: Any, x: Any) -> Any:
        halves = [g.call_function(operator.getitem, (x, slice(a, a + 3))) for a in (0, 2)]
        return g.call_function(torch.ops.trnport_test.pair, tuple(halves)), x

    with pytest.raises(NotImplementedError, match="may overlap"):
        PassManager([InPlaceToOutOfPlace()]).run(build(1, make), example_inputs=[torch.ones(5)])


# --- kernels --------------------------------------------------------------------------------------


def swap_kernel(a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """A kernel in the style of those whose operands are outputs: it changes ``a``."""
    total = a.sum() * scale
    a.copy_(b)
    return total, a


@pytest.mark.parametrize("reads_output", [True, False])
def test_a_kernel_whose_operand_is_an_output(reads_output: bool) -> None:
    def make(g: Any, a: Any, b: Any) -> Any:
        half = g.call_function(operator.getitem, (a, 0))
        node = g.call_function(swap_kernel, (half, b, 2.0))
        node.meta["operand_output_aliases"] = {0: 1}
        total = g.call_function(operator.getitem, (node, 0))
        seen = g.call_function(operator.getitem, (node, 1)) if reads_output else half
        return total, g.call_method("add", (seen, 1))

    gm = build(2, make)
    args = (torch.arange(6.0).reshape(2, 3), torch.ones(3))
    buffer = args[0].clone()
    want = gm(buffer, args[1].clone())
    facts = default_passes().run(gm, example_inputs=args)
    assert facts["io_map"] == {2: 0}
    got = gm(args[0].clone(), args[1].clone())
    assert all(torch.equal(x, y) for x, y in zip(got, (*want, buffer), strict=True))


def configs(gm: GraphModule) -> list[dict[str, Any]]:
    found = [node.meta.get("backend_config") for node in gm.graph.nodes]
    return [json.loads(text) for text in found if text]


def test_kernels_get_their_settings_and_say_what_they_change() -> None:
    gm, given = capture(write_twice, *inputs())
    first = next(node for node in gm.graph.nodes if "put" in str(node.target))
    first.meta["kernel_config"] = {"lnc": 2}
    facts = default_passes().run(
        gm, example_inputs=given, kernel_namespaces=("trnport_test",), kernel_config={"lnc": 1}
    )
    assert facts["kernels"] == 3
    assert configs(gm) == [
        {
            "kernel": "trnport_test::put",
            "settings": {"lnc": 2},
            "aliases": {"cache": 1, "count": 2},
        },
        {
            "kernel": "trnport_test::put",
            "settings": {"lnc": 1},
            "aliases": {"cache": 1, "count": 2},
        },
        {"kernel": "trnport_test::clear", "settings": {"lnc": 1}, "aliases": {"x": 0}},
    ]


def test_other_operators_are_no_kernels() -> None:
    gm, given = capture(write_twice, *inputs())
    assert KernelBackendConfig().run(gm, example_inputs=given) == {"kernels": 0}


# --- collectives ----------------------------------------------------------------------------------


def replica(name: str, by_keyword: bool = False) -> GraphModule:
    args, kwargs = ((), {"group_name": name}) if by_keyword else ((name,), {})
    target = torch.ops.trnport_test.sum_ranks.default
    return build(1, lambda g, x: (g.call_function(target, (x, *args), kwargs),))


def test_replicas_get_the_same_graph() -> None:
    first, second = replica("3"), replica("12")
    facts = CollectiveReplicaGroups().run(first, groups={"3": [[0, 1], [2, 3]]})
    assert facts == {"group_names": {"replica:0,1;2,3": "3"}}
    groups = {"12": [[4, 5], [6, 7]], "13": [[8, 9]]}
    CollectiveReplicaGroups().run(second, groups=groups, replica_ranks=[4, 5, 6, 7])
    assert first.code == second.code
    (node,) = [n for n in second.graph.nodes if n.op == "call_function"]
    assert node.meta["replica_groups"] == ((0, 1), (2, 3))
    x = torch.ones(3)
    assert torch.equal(first(x)[0], second(x)[0])


def test_groups_across_replicas_keep_the_ranks_of_the_world() -> None:
    gm = replica("7", by_keyword=True)
    facts = CollectiveReplicaGroups().run(gm, groups={"7": [[0, 4], [1, 5]]}, replica_ranks=[0, 1])
    assert facts == {"group_names": {"world:0,4;1,5": "7"}}
    (node,) = [n for n in gm.graph.nodes if n.op == "call_function"]
    assert node.kwargs["group_name"] == "world:0,4;1,5"


def test_an_unknown_group_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no group is called '3'; there are \['tp'\]"):
        CollectiveReplicaGroups().run(replica("3"), groups={"tp": [[0]]})


def test_torchs_functional_collectives_are_known() -> None:
    target = torch.ops._c10d_functional.all_reduce.default
    gm = build(1, lambda g, x: (g.call_function(target, (x, "sum", "5")),))
    facts = CollectiveReplicaGroups().run(gm, groups={"5": [[8, 9]]})
    assert facts == {"group_names": {"replica:0,1": "5"}}
