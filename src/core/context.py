# SPDX-License-Identifier: Apache-2.0
"""What a model is given at construction: its ports and its place among the ranks."""

from __future__ import annotations

import attrs

from trnport.core.parallel.group import Group
from trnport.core.ports.collectives import Collectives
from trnport.core.ports.kernels import Kernels


@attrs.frozen
class ModelContext:
    """Ports a model computes with.

    Attributes:
        kernels: Operators on this rank's shards.
        tp: The tensor-parallel group.
    """

    kernels: Kernels
    tp: Group

    @classmethod
    def of(cls, kernels: Kernels, collectives: Collectives) -> ModelContext:
        """A context whose tensor-parallel group is the collectives' group "tp"."""
        return cls(kernels=kernels, tp=Group(collectives, "tp"))
