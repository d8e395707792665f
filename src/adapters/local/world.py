# SPDX-License-Identifier: Apache-2.0
"""Several ranks as threads of one process: deterministic, recorded, never hanging."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from trnport.adapters.local import combine
from trnport.adapters.local.exchange import Exchange
from trnport.core.errors import ConfigError
from trnport.core.parallel.call import CollectiveCall
from trnport.core.ports.collectives import Collectives

Result = TypeVar("Result")


class LocalWorld:
    """Ranks that are threads.

    >>> import torch
    >>> world = LocalWorld(2)
    >>> world.run(lambda tp: tp.all_reduce(torch.tensor([1 + tp.rank("tp")]), "tp").tolist())
    [[3], [3]]
    >>> print(world.calls[0][0])
    all_reduce(int64[1], group='tp')

    Sums are taken in rank order, so results are the same bits on every run. A rank's
    collectives stay valid over several runs: models can be built in one and called in another.

    Args:
        size: Number of ranks.
        groups: Group name to lists of ranks that communicate with each other; by default
            the group "tp" of all ranks.
        timeout: Seconds after which a rank that waits for a busy one gives up.

    Raises:
        ConfigError: ``size`` is below 1, or a group repeats a rank or names an unknown one.
    """

    def __init__(
        self,
        size: int,
        groups: Mapping[str, Sequence[Sequence[int]]] | None = None,
        timeout: float = 60.0,
    ) -> None:
        if size < 1:
            raise ConfigError(f"a world needs at least one rank, not {size}")
        groups = {"tp": [range(size)]} if groups is None else groups
        self._members = {name: _members_of(name, parts, size) for name, parts in groups.items()}
        self._timeout = timeout
        self._thread = threading.local()  # which run and rank the current thread plays
        self.size = size
        self.calls: list[list[CollectiveCall]] = [[] for _ in range(size)]
        """The calls of each rank, in order."""
        self.ranks = tuple(LocalCollectives(self, rank) for rank in range(size))
        """The collectives of each rank; operations work in that rank's part of :meth:`run` only."""

    def run(self, function: Callable[[LocalCollectives], Result]) -> list[Result]:
        """Call ``function(collectives)`` on every rank at once.

        The caller's grad and inference modes hold on every rank.

        Returns:
            One result per rank, in rank order.

        Raises:
            BaseException: The first failure of a rank as it was raised, with a note that
                names the rank. The other ranks are stopped at their next collective.
            CollectiveMismatchError: Ranks made different calls, or wait for each other.
            TimeoutError: A rank waited too long.
        """
        exchange = Exchange(self.size, self._timeout)
        results: list[Result | None] = [None] * self.size
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def play(rank: int) -> None:
            self._thread.part = (exchange, rank)
            try:  # torch keeps both modes per thread
                with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                    results[rank] = function(self.ranks[rank])
            except BaseException as error:  # noqa: BLE001  # raised again by run()
                exchange.fail(rank, error)
            else:
                exchange.finish(rank)

        threads = [
            threading.Thread(target=play, args=(rank,), name=f"rank{rank}", daemon=True)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        failure = exchange.wait_until_over()
        for thread in threads:  # a rank that is busy after a failure is left to itself
            thread.join(self._timeout if failure else None)
        if failure:
            rank, error = failure
            error.add_note(f"raised on rank {rank} of a LocalWorld of {self.size}")
            raise error
        return results  # type: ignore[return-value]  # every rank has returned

    def members(self, group: str, rank: int) -> tuple[int, ...]:
        """Ranks of the world that are in ``group`` together with ``rank``, in group order.

        Raises:
            KeyError: No such group, or the rank is in no part of it.
        """
        if group not in self._members:
            raise KeyError(f"no group is called {group!r}; there are {sorted(self._members)}")
        for part in self._members[group]:
            if rank in part:
                return part
        raise KeyError(f"rank {rank} is in no part of group {group!r}: {self._members[group]}")

    def exchange(
        self, rank: int, members: tuple[int, ...], call: CollectiveCall, x: Tensor
    ) -> list[Tensor]:
        """Record one rank's call and wait for the other members; see :class:`Exchange`."""
        exchange, played = getattr(self._thread, "part", (None, None))
        if exchange is None or played != rank:
            raise RuntimeError(f"{call} outside rank {rank}'s part in LocalWorld.run")
        self.calls[rank].append(call)
        return exchange.meet(rank, members, call, x)


def _members_of(
    name: str, parts: Sequence[Sequence[int]], size: int
) -> tuple[tuple[int, ...], ...]:
    ranks = [rank for part in parts for rank in part]
    if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(size)):
        raise ConfigError(
            f"group {name!r} must name each rank of 0 to {size - 1} at most once, got {parts}"
        )
    return tuple(tuple(part) for part in parts)


class LocalCollectives(Collectives):
    """One rank of a :class:`LocalWorld`, which makes it."""

    def __init__(self, world: LocalWorld, rank: int) -> None:
        self._world = world
        self._rank = rank

    def rank(self, group: str) -> int:
        """Position of this rank in its part of ``group``."""
        return self._world.members(group, self._rank).index(self._rank)

    def size(self, group: str) -> int:
        """Ranks in this rank's part of ``group``."""
        return len(self._world.members(group, self._rank))

    def all_reduce(self, x: Tensor, group: str) -> Tensor:
        """Sum in rank order, in the dtype of ``x``."""
        return combine.summed(self._meet("all_reduce", x, group))

    def all_gather(self, x: Tensor, dim: int, group: str) -> Tensor:
        """Concatenate in rank order."""
        return combine.gathered(self._meet("all_gather", x, group, dim=dim), dim)

    def reduce_scatter(self, x: Tensor, dim: int, group: str) -> Tensor:
        """Sum this rank's share in rank order."""
        combine.check_divisible("reduce_scatter", x, dim, self.size(group), group)
        parts = self._meet("reduce_scatter", x, group, dim=dim)
        return combine.scattered_sum(parts, dim, self.rank(group))

    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int, group: str) -> Tensor:
        """Take this rank's share of every rank's tensor."""
        combine.check_divisible("all_to_all", x, split_dim, self.size(group), group)
        dims = {"split_dim": split_dim, "concat_dim": concat_dim}
        parts = self._meet("all_to_all", x, group, **dims)
        return combine.exchanged(parts, split_dim, concat_dim, self.rank(group))

    def broadcast(self, x: Tensor, source: int, group: str) -> Tensor:
        """Copy the tensor of ``source``."""
        combine.check_source(source, self.size(group), group)
        return self._meet("broadcast", x, group, source=source)[source].clone()

    def _meet(self, operation: str, x: Tensor, group: str, **options: int) -> list[Tensor]:
        members = self._world.members(group, self._rank)
        call = CollectiveCall(operation, group, tuple(x.shape), x.dtype, options)
        return self._world.exchange(self._rank, members, call, x)
