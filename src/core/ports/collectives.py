# SPDX-License-Identifier: Apache-2.0
"""Port: communication over named groups of ranks.

Every rank of a group makes the same calls in the same order with the same shapes and
dtypes. Results are new tensors; inputs are not mutated. In a group of one they are copies.
"""

from __future__ import annotations

import abc

from torch import Tensor


class Collectives(abc.ABC):
    """Communication of one rank with the other members of its groups.

    Attributes:
        traceable: Whether a compiler can record the operations without running them.
    """

    traceable: bool = False

    @abc.abstractmethod
    def rank(self, group: str) -> int:
        """Position of this rank inside ``group``, from 0."""

    @abc.abstractmethod
    def size(self, group: str) -> int:
        """Number of ranks in ``group``. An unknown name is a KeyError that lists the groups."""

    @abc.abstractmethod
    def all_reduce(self, x: Tensor, group: str) -> Tensor:
        """Elementwise sum over the group; shape and dtype of ``x``."""

    @abc.abstractmethod
    def all_gather(self, x: Tensor, dim: int, group: str) -> Tensor:
        """Concatenate every rank's ``x`` along ``dim``, in rank order."""

    @abc.abstractmethod
    def reduce_scatter(self, x: Tensor, dim: int, group: str) -> Tensor:
        """Sum over the group, then keep this rank's equal share of ``dim``.

        Raises:
            ValueError: ``x.shape[dim]`` is not a multiple of the group's size.
        """

    @abc.abstractmethod
    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int, group: str) -> Tensor:
        """Send share i of ``split_dim`` to rank i; concatenate what arrives on ``concat_dim``.

        Raises:
            ValueError: ``x.shape[split_dim]`` is not a multiple of the group's size.
        """

    @abc.abstractmethod
    def broadcast(self, x: Tensor, source: int, group: str) -> Tensor:
        """The tensor of the group's rank ``source``, on every rank.

        Raises:
            ValueError: ``source`` is not a rank of the group.
        """
