# SPDX-License-Identifier: Apache-2.0
"""What a step gives to those who choose tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import attrs
import torch
from torch import Tensor

from trnport.core.engine.hidden import HiddenRows
from trnport.core.metadata import ModelOutput


@attrs.frozen(eq=False)
class StepResult:
    """Logits or tokens of the requests whose next token can be sampled.

    Attributes:
        request_ids: n ids, in the order of the batch.
        logits: ``[n, vocab_size]``; None when programs return tokens only.
        token_ids: ``[n]`` int64 when programs sample, else None.
        hidden_states: What prefill programs returned for requests that need it, by id.
    """

    request_ids: list[str]
    logits: Tensor | None
    token_ids: Tensor | None = None
    hidden_states: dict[str, HiddenRows] = attrs.field(factory=dict)

    @classmethod
    def collect(
        cls,
        request_ids: list[str],
        rows: Mapping[str, ModelOutput],
        hidden_states: dict[str, HiddenRows],
    ) -> Self:
        """Stack the rows of some requests, at least one."""
        outputs = [rows[request_id] for request_id in request_ids]
        return cls(
            request_ids=request_ids,
            logits=_stack([output.logits for output in outputs]),
            token_ids=_stack([output.token_ids for output in outputs]),
            hidden_states=hidden_states,
        )

    def require_logits(self) -> Tensor:
        """The logits.

        Raises:
            ValueError: Programs return none.
        """
        if self.logits is None:
            raise ValueError("the programs return tokens only, and logits were asked for")
        return self.logits


def row_of(output: ModelOutput, row: int) -> ModelOutput:
    """One row of a program's logits and tokens."""
    return ModelOutput(
        logits=None if output.logits is None else output.logits[row],
        token_ids=None if output.token_ids is None else output.token_ids[row],
    )


def _stack(rows: list[Tensor | None]) -> Tensor | None:
    present = [row for row in rows if row is not None]
    return torch.stack(present) if present else None
