# SPDX-License-Identifier: Apache-2.0
"""Collectives of a process that is alone."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from trnport.adapters.local import combine
from trnport.core.ports.collectives import Collectives


class SingleCollectives(Collectives):
    """One rank. Every operation returns a copy of its input.

    A copy, although returning the input itself would be cheaper: code that then writes into
    a result must not behave differently on one rank and on several.

    Args:
        groups: Names of the groups, all of size 1.
    """

    traceable = True

    def __init__(self, groups: Iterable[str] = ("tp",)) -> None:
        self._groups = frozenset(groups)

    def rank(self, group: str) -> int:
        """Always 0."""
        return self.size(group) - 1

    def size(self, group: str) -> int:
        """Always 1."""
        if group not in self._groups:
            raise KeyError(f"no group is called {group!r}; there are {sorted(self._groups)}")
        return 1

    def all_reduce(self, x: Tensor, group: str) -> Tensor:
        """A copy of ``x``."""
        self.size(group)
        return x.clone()

    def all_gather(self, x: Tensor, dim: int, group: str) -> Tensor:
        """A copy of ``x``."""
        self.size(group)
        return combine.gathered([x], dim)

    def reduce_scatter(self, x: Tensor, dim: int, group: str) -> Tensor:
        """A copy of ``x``."""
        self.size(group)
        return combine.scattered_sum([x], dim, 0)

    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int, group: str) -> Tensor:
        """A copy of ``x``."""
        self.size(group)
        return combine.exchanged([x], split_dim, concat_dim, 0)

    def broadcast(self, x: Tensor, source: int, group: str) -> Tensor:
        """A copy of ``x``; ``source`` has to be 0."""
        combine.check_source(source, self.size(group), group)
        return x.clone()
