# SPDX-License-Identifier: Apache-2.0
"""The Collectives port over process groups that somebody else has set up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor

from trnport.core.parallel.checks import check_divisible, check_source
from trnport.core.ports.collectives import Collectives


class DistributedCollectives(Collectives):
    """One process of several.

    Args:
        groups: Group name to the torch.distributed process group of this rank. The groups
            stay the caller's: nothing here creates or destroys one.
    """

    def __init__(self, groups: Mapping[str, dist.ProcessGroup]) -> None:
        self._groups = MappingProxyType(dict(groups))

    def rank(self, group: str) -> int:
        """Position of this process inside the group."""
        return dist.get_rank(self._group(group))

    def size(self, group: str) -> int:
        """Number of processes in the group."""
        return dist.get_world_size(self._group(group))

    def all_reduce(self, x: Tensor, group: str) -> Tensor:
        """Elementwise sum."""
        result = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(result, group=self._group(group))
        return result

    def all_gather(self, x: Tensor, dim: int, group: str) -> Tensor:
        """Concatenation in rank order."""
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format)
                 for _ in range(self.size(group))]  # fmt: skip
        dist.all_gather(parts, x.contiguous(), group=self._group(group))
        return torch.cat(parts, dim)

    def reduce_scatter(self, x: Tensor, dim: int, group: str) -> Tensor:
        """This rank's share of the sum."""
        size = self.size(group)
        check_divisible("reduce_scatter", x, dim, size, group)
        shares = [share.contiguous() for share in x.tensor_split(size, dim)]
        result = torch.empty_like(shares[0])
        dist.reduce_scatter(result, shares, group=self._group(group))
        return result

    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int, group: str) -> Tensor:
        """The shares that all ranks send to this one."""
        size = self.size(group)
        check_divisible("all_to_all", x, split_dim, size, group)
        # Gloo exchanges one tensor whose first dimension counts the ranks.
        sent = torch.stack(x.tensor_split(size, split_dim))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group(group))
        return torch.cat(received.unbind(), concat_dim)

    def broadcast(self, x: Tensor, source: int, group: str) -> Tensor:
        """The source's tensor."""
        check_source(source, self.size(group), group)
        result = x.clone(memory_format=torch.contiguous_format)
        dist.broadcast(result, group=self._group(group), group_src=source)
        return result

    def _group(self, name: str) -> dist.ProcessGroup:
        if name not in self._groups:
            raise KeyError(f"no group is called {name!r}; there are {sorted(self._groups)}")
        return self._groups[name]
