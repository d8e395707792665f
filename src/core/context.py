# SPDX-License-Identifier: Apache-2.0
"""What a model is given at construction: its ports and its place among the ranks."""

from __future__ import annotations

import attrs

from trnport.core.parallel.group import Group
from trnport.core.ports.collectives import Collectives
from trnport.core.ports.kernels import Kernels


@attrs.frozen
class ProgramSampling:
    """That programs sample, and what else they return.

    Attributes:
        all_greedy: They only take the largest logit.
        returns_logits: They return the gathered logits as well.
    """

    all_greedy: bool = False
    returns_logits: bool = True


@attrs.frozen
class ModelContext:
    """Ports a model computes with.

    Attributes:
        kernels: Operators on this rank's shards.
        tp: The tensor-parallel group.
        sampling: How programs sample; None returns logits only.
    """

    kernels: Kernels
    tp: Group
    sampling: ProgramSampling | None = None

    @classmethod
    def of(
        cls, kernels: Kernels, collectives: Collectives, sampling: ProgramSampling | None = None
    ) -> ModelContext:
        """A context whose tensor-parallel group is the collectives' group "tp"."""
        return cls(kernels=kernels, tp=Group(collectives, "tp"), sampling=sampling)
