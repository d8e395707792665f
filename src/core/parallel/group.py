# SPDX-License-Identifier: Apache-2.0
"""A named group of ranks, as model code sees it."""

from __future__ import annotations

import attrs
from torch import Tensor

from trnport.core.ports.collectives import Collectives


@attrs.frozen
class Group:
    """One group of a Collectives adapter, with the names model authors know."""

    collectives: Collectives
    name: str = "tp"

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return self.collectives.size(self.name)

    @property
    def rank_in_group(self) -> int:
        """Position of this rank in the group, from 0."""
        return self.collectives.rank(self.name)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over the group."""
        return self.collectives.all_reduce(x, self.name)

    def all_gather(self, x: Tensor, dim: int = 0) -> Tensor:
        """Concatenate all ranks' tensors along ``dim``."""
        return self.collectives.all_gather(x, dim, self.name)

    def reduce_scatter(self, x: Tensor, dim: int = 0) -> Tensor:
        """Sum over the group and keep this rank's share of ``dim``."""
        return self.collectives.reduce_scatter(x, dim, self.name)
