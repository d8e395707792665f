# SPDX-License-Identifier: Apache-2.0
"""Contract of the Collectives port, then what LocalWorld adds to it."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.contracts.conftest import World
from trnport.adapters.local import (
    CollectiveMismatchError,
    LocalWorld,
    RankAbortedError,
    SingleCollectives,
)
from trnport.core.errors import ConfigError
from trnport.core.ports import Collectives

DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def held_by(
    rank: int, shape: tuple[int, ...] = (4, 3), dtype: torch.dtype = torch.float32
) -> Tensor:
    """What a rank holds: small integers, so that sums are exact in every dtype."""
    g = torch.Generator().manual_seed(rank)
    return torch.randint(-9, 10, shape, generator=g).to(dtype)


def call(collectives: Collectives, name: str, x: Tensor | None = None, **options: object) -> Tensor:
    """Call an operation on what this rank holds; a function that a process can be sent."""
    own = held_by(collectives.rank("tp")) if x is None else x
    return getattr(collectives, name)(own, group="tp", **options)


def call_on(
    collectives: Collectives, name: str, shape: tuple[int, ...], dtype: torch.dtype, **options
) -> Tensor:
    return call(collectives, name, held_by(collectives.rank("tp"), shape, dtype), **options)


def expected_sum(size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.stack([held_by(rank, shape, dtype).double() for rank in range(size)]).sum(0)


def ranks_and_sizes(collectives: Collectives) -> tuple[int, int]:
    return collectives.rank("tp"), collectives.size("tp")


def test_each_rank_knows_its_place(world: World) -> None:
    assert world.run(ranks_and_sizes) == [(rank, world.size) for rank in range(world.size)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (4, 3)])
def test_all_reduce_sums(world: World, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    results = world.run(partial(call_on, name="all_reduce", shape=shape, dtype=dtype))
    for result in results:
        assert result.dtype == dtype
        assert torch.equal(result.double(), expected_sum(world.size, shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_all_gather_concatenates_in_rank_order(world: World, dim: int, dtype: torch.dtype) -> None:
    results = world.run(partial(call_on, name="all_gather", shape=(4, 3), dtype=dtype, dim=dim))
    want = torch.cat([held_by(rank, dtype=dtype) for rank in range(world.size)], dim)
    assert all(torch.equal(result, want) and result.dtype == dtype for result in results)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_reduce_scatter_keeps_the_ranks_share(world: World, dim: int, dtype: torch.dtype) -> None:
    shape = (2 * world.size, 3 * world.size)
    results = world.run(partial(call_on, name="reduce_scatter", shape=shape, dtype=dtype, dim=dim))
    total = expected_sum(world.size, shape, dtype)
    step = shape[dim] // world.size
    for rank, result in enumerate(results):
        assert result.dtype == dtype
        assert torch.equal(result.double(), total.narrow(dim, rank * step, step))


@pytest.mark.parametrize(("split", "concat"), [(0, 1), (1, 0), (0, 0), (-1, 0)])
def test_all_to_all_transposes_shares(world: World, split: int, concat: int) -> None:
    n = world.size
    shape = (2 * n, 3 * n)
    results = world.run(
        partial(
            call_on,
            name="all_to_all",
            shape=shape,
            dtype=torch.int64,
            split_dim=split,
            concat_dim=concat,
        )
    )
    step = shape[split] // n
    for rank, result in enumerate(results):
        sent = [held_by(r, shape, torch.int64).narrow(split, rank * step, step) for r in range(n)]
        assert torch.equal(result, torch.cat(sent, concat))


def test_broadcast_gives_the_sources_tensor(world: World) -> None:
    for source in range(world.size):
        results = world.run(partial(call, name="broadcast", source=source))
        assert all(torch.equal(result, held_by(source)) for result in results)


def scatter_then_gather(collectives: Collectives, size: int) -> Tensor:
    x = held_by(collectives.rank("tp"), (2 * size, 3))
    return collectives.all_gather(collectives.reduce_scatter(x, 0, "tp"), 0, "tp")


def test_reduce_scatter_then_all_gather_is_all_reduce(world: World) -> None:
    want = expected_sum(world.size, (2 * world.size, 3), torch.float32).float()
    for result in world.run(partial(scatter_then_gather, size=world.size)):
        assert torch.equal(result, want)


ALL = [
    ("all_reduce", {}),
    ("all_gather", {"dim": 0}),
    ("reduce_scatter", {"dim": 0}),
    ("all_to_all", {"split_dim": 0, "concat_dim": 1}),
    ("broadcast", {"source": 0}),
]
OPERATIONS = pytest.mark.parametrize(("name", "options"), ALL)


def overwrite_both(collectives: Collectives, name: str, options: dict[str, int]) -> list[Tensor]:
    """Overwrite the input and the result at once; neither may reach anything else."""
    size = collectives.size("tp")
    kept = []
    for _ in range(20):
        x = held_by(collectives.rank("tp"), (size, size))
        before = x.clone()
        result = call(collectives, name, x, **options)
        assert torch.equal(x, before), "the input was changed"
        x.fill_(-99)
        kept.append(result.clone())
        result.fill_(77)
        assert (x == -99).all(), "the result shares memory with the input"
    return kept


@OPERATIONS
def test_results_are_new_and_inputs_stay(world: World, name: str, options: dict[str, int]) -> None:
    for kept in world.run(partial(overwrite_both, name=name, options=options)):
        assert all(torch.equal(kept[0], other) for other in kept[1:])


def transposed(collectives: Collectives, name: str, options: dict[str, int]) -> bool:
    size = collectives.size("tp")
    x = held_by(collectives.rank("tp"), (3 * size, 2 * size)).T
    return torch.equal(
        call(collectives, name, x, **options), call(collectives, name, x.contiguous(), **options)
    )


@OPERATIONS
def test_any_memory_layout_goes(world: World, name: str, options: dict[str, int]) -> None:
    assert all(world.run(partial(transposed, name=name, options=options)))


def refusal(collectives: Collectives, name: str, **options: object) -> str:
    """The error of a call that no rank may get through."""
    group = options.pop("group", "tp")
    try:
        getattr(collectives, name)(held_by(0, (7, 7)), group=group, **options)
    except (KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


@OPERATIONS
def test_unknown_group_lists_the_known_ones(world: World, name, options) -> None:
    for error in world.run(partial(refusal, name=name, group="pp", **options)):
        assert error.startswith("KeyError")
        assert "'pp'" in error
        assert "'tp'" in error


@pytest.mark.parametrize(
    ("name", "options"),
    [("reduce_scatter", {"dim": 1}), ("all_to_all", {"split_dim": 1, "concat_dim": 0})],
)
def test_uneven_shares_are_refused(world: World, name: str, options: dict[str, int]) -> None:
    """Before any rank waits for another."""
    for error in world.run(partial(refusal, name=name, **options)):
        assert error.startswith("none" if world.size == 1 else "ValueError")
        assert world.size == 1 or ("7" in error and str(world.size) in error and name in error)


@pytest.mark.parametrize("beyond", [-1, 0])
def test_broadcast_from_outside_is_refused(world: World, beyond: int) -> None:
    source = beyond if beyond < 0 else world.size
    for error in world.run(partial(refusal, name="broadcast", source=source)):
        assert error.startswith("ValueError")


# --- one rank ---------------------------------------------------------------------------------


def test_single_takes_any_group_names() -> None:
    collectives = SingleCollectives({"tp", "dp"})
    assert collectives.size("dp") == 1
    assert collectives.rank("tp") == 0


# --- ranks as threads -------------------------------------------------------------------------


def test_sums_have_the_same_bits_in_every_run_and_rank() -> None:
    terms = [1e8, 1.0, -1e8, 0.3, 1e-3]  # every order of summation rounds differently
    want = torch.zeros(1)
    for term in terms:
        want = want + torch.tensor([term])

    def body(tp: Collectives) -> Tensor:
        time.sleep(0.001 * (tp.rank("tp") * 3 % 5))  # arrive out of order
        return tp.all_reduce(torch.tensor([terms[tp.rank("tp")]]), "tp")

    for _ in range(10):
        assert all(torch.equal(result, want) for result in LocalWorld(5).run(body))


def test_groups_are_separate() -> None:
    world = LocalWorld(4, {"rows": [[0, 1], [2, 3]], "columns": [[2, 0], [1, 3]], "some": [[1, 2]]})

    def body(c: Collectives) -> tuple[list[int], list[int], int, int]:
        own = torch.tensor([c.rank("rows") + 10 * c.size("columns")])
        me = torch.tensor([int(threading.current_thread().name[-1])])
        return (
            c.all_gather(me, 0, "rows").tolist(),
            c.all_gather(me, 0, "columns").tolist(),
            c.rank("columns"),
            int(own),
        )

    assert world.run(body) == [
        ([0, 1], [2, 0], 1, 20),
        ([0, 1], [1, 3], 0, 21),
        ([2, 3], [2, 0], 0, 20),
        ([2, 3], [1, 3], 1, 21),
    ]
    assert world.ranks[2].rank("some") == 1
    with pytest.raises(KeyError, match="rank 0 is in no part of group 'some'"):
        world.ranks[0].size("some")


@pytest.mark.parametrize("parts", [[[0, 0]], [[0, 2]], [[0], [0, 1]]])
def test_groups_must_make_sense(parts: list[list[int]]) -> None:
    with pytest.raises(ConfigError, match="'tp'"):
        LocalWorld(2, {"tp": parts})
    with pytest.raises(ConfigError, match="at least one"):
        LocalWorld(0)


def test_calls_are_recorded_per_rank() -> None:
    world = LocalWorld(2)
    world.run(lambda tp: tp.reduce_scatter(tp.all_gather(torch.ones(1, 6), 0, "tp"), 1, "tp"))
    for calls in world.calls:
        assert [c.operation for c in calls] == ["all_gather", "reduce_scatter"]
        assert [c.shape for c in calls] == [(1, 6), (2, 6)]
        assert [c.dtype for c in calls] == [torch.float32] * 2
        assert [c.options for c in calls] == [{"dim": 0}, {"dim": 1}]
        assert {c.group for c in calls} == {"tp"}


def on_rank_1(first, second):
    """A body in which rank 1 does ``second`` and every other rank ``first``."""
    return lambda c: second(c) if c.rank("tp") == 1 else first(c)


MISMATCHES = {
    "operation": (lambda c: c.all_reduce(torch.ones(2), "tp"), "all_gather"),
    "shape": (lambda c: c.all_gather(torch.ones(3), 0, "tp"), r"float32\[3\]"),
    "dtype": (lambda c: c.all_gather(torch.ones(2, dtype=torch.int64), 0, "tp"), "int64"),
    "dim": (lambda c: c.all_gather(torch.ones(2), -1, "tp"), "dim=-1"),
    "group": (lambda c: c.all_gather(torch.ones(2), 0, "other"), "'other'"),
}


@pytest.mark.parametrize("kind", MISMATCHES)
def test_mismatch_names_both_sides_and_never_hangs(kind: str) -> None:
    other, told = MISMATCHES[kind]
    world = LocalWorld(2, {"tp": [[0, 1]], "other": [[0, 1]]})
    start = time.monotonic()
    with pytest.raises(CollectiveMismatchError, match=told) as caught:
        world.run(on_rank_1(lambda c: c.all_gather(torch.ones(2), 0, "tp"), other))
    assert "all_gather(float32[2], dim=0, group='tp')" in str(caught.value)
    assert {"rank 0", "rank 1"} <= {str(caught.value)[i : i + 6] for i in range(300)}
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("size", [2, 3, 5])
def test_waiting_for_a_rank_that_returned_is_noticed(size: int) -> None:
    with pytest.raises(CollectiveMismatchError, match="rank 1 has returned"):
        LocalWorld(size).run(on_rank_1(lambda c: call(c, "all_reduce"), lambda c: None))


def test_a_returned_rank_is_noticed_while_another_is_busy() -> None:
    noticed = threading.Event()

    def body(c: Collectives) -> None:
        if c.rank("tp") == 0:
            try:
                call(c, "all_reduce")
            finally:
                noticed.set()
        elif c.rank("tp") == 2:
            assert noticed.wait(20), "rank 0 was left waiting"

    with pytest.raises(CollectiveMismatchError, match="rank 1 has returned"):
        LocalWorld(3).run(body)


def test_failure_stops_the_others_and_names_its_rank() -> None:
    stopped = []

    def fail(c: Collectives) -> None:
        call(c, "all_reduce")
        raise LookupError("no such layer")

    def wait(c: Collectives) -> None:
        try:
            for _ in range(2):
                call(c, "all_reduce")
        except RankAbortedError as error:
            stopped.append(str(error))
            raise

    world = LocalWorld(3)
    with pytest.raises(LookupError, match="no such layer") as caught:
        world.run(on_rank_1(wait, fail))
    assert caught.value.__notes__ == ["raised on rank 1 of a LocalWorld of 3"]
    assert len(stopped) == 2
    assert all("rank 1 failed with LookupError: no such layer" in error for error in stopped)
    # The world is as good as new.
    assert [int(x) for x in world.run(lambda c: c.all_reduce(torch.tensor(1), "tp"))] == [3] * 3


def test_a_busy_rank_is_waited_for_only_so_long() -> None:
    release = threading.Event()
    world = LocalWorld(2, timeout=0.05)
    try:
        with pytest.raises(TimeoutError, match=r"rank 0 waited 0.05 s in all_reduce.*ranks \[1\]"):
            world.run(on_rank_1(lambda c: call(c, "all_reduce"), lambda c: release.wait(30)))
    finally:
        release.set()


def test_collectives_answer_only_in_their_own_part_of_a_run() -> None:
    world = LocalWorld(2)
    with pytest.raises(RuntimeError, match="outside rank 0"):
        call(world.ranks[0], "all_reduce")
    with pytest.raises(RuntimeError, match="outside rank 1"):
        world.run(lambda _: call(world.ranks[1], "all_reduce"))
    kept = world.run(lambda c: c)  # a model keeps its collectives from one run to the next
    assert all(c is rank for c, rank in zip(kept, world.ranks, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_ranks_inherit_the_callers_modes(mode) -> None:
    with mode():
        want = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        modes = LocalWorld(2).run(
            lambda _: (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        )
    assert modes == [want] * 2
