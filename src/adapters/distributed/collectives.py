# SPDX-License-Identifier: Apache-2.0
"""The Collectives port over process groups that somebody else has set up."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from trnport.adapters.distributed import ops
from trnport.core.parallel.checks import check_divisible, check_source
from trnport.core.ports.collectives import Collectives


class DistributedCollectives(Collectives):
    """One process of several.

    Args:
        groups: Group name to the torch.distributed process group of this rank. The groups
            stay the caller's: nothing here creates or destroys one.

    Raises:
        ConfigError: The process has another group of one of the names.
    """

    traceable = True

    def __init__(self, groups: Mapping[str, dist.ProcessGroup]) -> None:
        for name, group in groups.items():
            ops.bind(name, group)
        # Plain values only, since they are all that a compiled program depends on.
        self._places = {
            name: (dist.get_rank(group), dist.get_world_size(group))
            for name, group in groups.items()
        }

    def rank(self, group: str) -> int:
        """Position of this process inside the group."""
        return self._place(group)[0]

    def size(self, group: str) -> int:
        """Number of processes in the group."""
        return self._place(group)[1]

    def all_reduce(self, x: Tensor, group: str) -> Tensor:
        """Elementwise sum."""
        self._place(group)
        if torch.compiler.is_dynamo_compiling():  # it has nodes of its own for torch's functions
            result = x.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(result, group=ops.group_called(group))
            return result
        return ops.all_reduce(x, group)

    def all_gather(self, x: Tensor, dim: int, group: str) -> Tensor:
        """Concatenation in rank order."""
        return _joined(ops.all_gather(x, self.size(group), group), dim)

    def reduce_scatter(self, x: Tensor, dim: int, group: str) -> Tensor:
        """This rank's share of the sum."""
        size = self.size(group)
        check_divisible("reduce_scatter", x, dim, size, group)
        return ops.reduce_scatter(_shares(x, dim, size), group)

    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int, group: str) -> Tensor:
        """The shares that all ranks send to this one."""
        size = self.size(group)
        check_divisible("all_to_all", x, split_dim, size, group)
        return _joined(ops.all_to_all(_shares(x, split_dim, size), group), concat_dim)

    def broadcast(self, x: Tensor, source: int, group: str) -> Tensor:
        """The source's tensor."""
        check_source(source, self.size(group), group)
        return ops.broadcast(x, source, group)

    def _place(self, group: str) -> tuple[int, int]:
        if group not in self._places:
            raise KeyError(f"no group is called {group!r}; there are {sorted(self._places)}")
        return self._places[group]


def _shares(x: Tensor, dim: int, size: int) -> Tensor:
    """``[size, ...]``: equal shares of a dimension, a view where it is the first."""
    return x.unflatten(dim, (size, x.shape[dim] // size)).movedim(dim % x.dim(), 0)


def _joined(parts: Tensor, dim: int) -> Tensor:
    """The parts ``[size, ...]`` side by side along a dimension of theirs, a view for the first."""
    at = dim % (parts.dim() - 1)
    return parts.movedim(0, at).flatten(at, at + 1)
