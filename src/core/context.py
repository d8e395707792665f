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
        has_lm_head: Whether the model computes logits. One that only embeds texts neither
            needs an LM head in memory nor one in its checkpoint.
    """

    kernels: Kernels
    tp: Group
    sampling: ProgramSampling | None = None
    has_lm_head: bool = True

    @classmethod
    def of(
        cls,
        kernels: Kernels,
        collectives: Collectives,
        sampling: ProgramSampling | None = None,
        *,
        has_lm_head: bool = True,
    ) -> ModelContext:
        """A context whose tensor-parallel group is the collectives' group "tp"."""
        return cls(kernels, Group(collectives, "tp"), sampling, has_lm_head)
