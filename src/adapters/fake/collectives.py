# SPDX-License-Identifier: Apache-2.0
"""One rank of a group whose other ranks do not exist."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from trnport.adapters.fake.errors import ContractViolationError
from trnport.core.parallel.call import CollectiveCall
from trnport.core.ports.collectives import Collectives


class FakeCollectives(Collectives):
    """Plays one rank, in the test's own thread.

    By default the other ranks are echoes: each holds what this one holds.

    >>> import torch
    >>> tp = FakeCollectives(rank=1, size=4)
    >>> tp.all_reduce(torch.ones(2), "tp")
    tensor([4., 4.])
    >>> tp.calls[0].operation, tp.calls[0].shape
    ('all_reduce', (2,))

    With ``results`` the test decides what each call returns:

    >>> tp = FakeCollectives(rank=0, size=2, results=[torch.tensor([7.0])])
    >>> tp.broadcast(torch.zeros(1), 1, "tp")
    tensor([7.])

    Args:
        rank: This rank, the same in every group.
        size: Size of every group.
        results: What the calls return, in order; their shapes and dtypes are checked.
        groups: Names of the groups.

    Attributes:
        calls: All calls in order.
    """

    traceable = True

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        results: Iterable[Tensor] | None = None,
        groups: Iterable[str] = ("tp",),
    ) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is not in a group of {size}")
        self._rank = rank
        self._size = size
        self._script = None if results is None else iter(results)
        self._groups = frozenset(groups)
        self.calls: list[CollectiveCall] = []

    def rank(self, group: str) -> int:
        """The rank given."""
        self.size(group)
        return self._rank

    def size(self, group: str) -> int:
        """The size given."""
        if group not in self._groups:
            raise KeyError(f"no group is called {group!r}; there are {sorted(self._groups)}")
        return self._size

    def all_reduce(self, x: Tensor, group: str) -> Tensor:
        """The next scripted result, or ``size * x``."""
        echo = x * self.size(group)
        return self._answer("all_reduce", x, group, echo)

    def all_gather(self, x: Tensor, dim: int, group: str) -> Tensor:
        """The next scripted result, or ``x`` repeated along ``dim``."""
        echo = torch.cat([x] * self.size(group), dim)
        return self._answer("all_gather", x, group, echo, dim=dim)

    def reduce_scatter(self, x: Tensor, dim: int, group: str) -> Tensor:
        """The next scripted result, or this rank's share of ``size * x``."""
        echo = self._share("reduce_scatter", x, dim, group) * self.size(group)
        return self._answer("reduce_scatter", x, group, echo, dim=dim)

    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int, group: str) -> Tensor:
        """The next scripted result, or this rank's share of ``x`` once per rank."""
        own = self._share("all_to_all", x, split_dim, group)
        echo = torch.cat([own] * self.size(group), concat_dim)
        dims = {"split_dim": split_dim, "concat_dim": concat_dim}
        return self._answer("all_to_all", x, group, echo, **dims)

    def broadcast(self, x: Tensor, source: int, group: str) -> Tensor:
        """The next scripted result, or a copy of ``x``."""
        if not 0 <= source < self.size(group):
            raise ValueError(f"broadcast source {source} is not a rank of {group!r}")
        return self._answer("broadcast", x, group, x.clone(), source=source)

    def _share(self, operation: str, x: Tensor, dim: int, group: str) -> Tensor:
        size = self.size(group)
        if x.shape[dim] % size:
            raise ValueError(
                f"{operation} over group {group!r}: dimension {dim} has {x.shape[dim]} entries, "
                f"not a multiple of the group's {size} ranks"
            )
        return x.tensor_split(size, dim)[self._rank]

    def _answer(
        self, operation: str, x: Tensor, group: str, echo: Tensor, **options: int
    ) -> Tensor:
        call = CollectiveCall(operation, group, tuple(x.shape), x.dtype, options)
        self.calls.append(call)
        if self._script is None:
            return echo
        scripted = next(self._script, None)
        if scripted is None:
            raise ContractViolationError(f"no scripted result is left for call {call}")
        if scripted.shape != echo.shape or scripted.dtype != echo.dtype:
            raise ContractViolationError(
                f"the scripted result is {scripted.dtype} {tuple(scripted.shape)}, but {call} "
                f"returns {echo.dtype} {tuple(echo.shape)}"
            )
        return scripted
