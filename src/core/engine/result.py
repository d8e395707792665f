# SPDX-License-Identifier: Apache-2.0
"""What a step gives to those who choose tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import attrs
import torch
from torch import Tensor

from trnport.core.engine.hidden import HiddenRows
from trnport.core.metadata import ModelOutput


class Piece(NamedTuple):
    """What one program gave for the requests whose next token can be sampled.

    Attributes:
        request_ids: n ids.
        logits: ``[n, vocab_size]``, or None.
        token_ids: ``[n]`` int64, or None.
    """

    request_ids: list[str]
    logits: Tensor | None
    token_ids: Tensor | None

    @classmethod
    def of(cls, request_ids: list[str], rows: list[int], output: ModelOutput) -> Self:
        """Some rows of a program's output, ascending; views of it if they are its first ones."""
        picked = slice(len(rows)) if rows[-1] == len(rows) - 1 else rows
        return cls(
            request_ids,
            None if output.logits is None else output.logits[picked],
            None if output.token_ids is None else output.token_ids[picked],
        )


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
        cls, order: Iterable[str], pieces: Sequence[Piece], hidden_states: dict[str, HiddenRows]
    ) -> Self:
        """Put the rows of some programs, at least one, into one order.

        Args:
            order: Ids in the order that the result is to have; others may be among them.
            pieces: At least one; no id is in two of them.
            hidden_states: Passed on.
        """
        found = [request_id for piece in pieces for request_id in piece.request_ids]
        logits = _join([piece.logits for piece in pieces])
        token_ids = _join([piece.token_ids for piece in pieces])
        row_of = {request_id: row for row, request_id in enumerate(found)}
        ids = [request_id for request_id in order if request_id in row_of]
        if ids != found:
            rows = [row_of[request_id] for request_id in ids]
            logits = None if logits is None else logits[rows]
            token_ids = None if token_ids is None else token_ids[rows]
        return cls(ids, logits, token_ids, hidden_states)

    def require_logits(self) -> Tensor:
        """The logits.

        Raises:
            ValueError: Programs return none.
        """
        if self.logits is None:
            raise ValueError("the programs return tokens only, and logits were asked for")
        return self.logits


def _join(tensors: Sequence[Tensor | None]) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    if len(present) < 2:
        return present[0] if present else None  # mostly: without a copy of the logits
    return torch.cat(present)
