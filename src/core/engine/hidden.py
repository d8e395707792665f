# SPDX-License-Identifier: Apache-2.0
"""Hidden states that leave a program, and the small program that turns them into logits."""

from __future__ import annotations

from typing import Protocol

import attrs
import torch
from torch import Tensor

from trnport.core.engine.buckets import Buckets
from trnport.core.engine.programs import Programs

MOST_HEAD_ROWS = 128
"""Rows of the LM-head program: one tile, and few enough for the logits of a large vocabulary."""


@attrs.frozen(eq=False)
class HiddenRows:
    """Hidden states of consecutive tokens of one request.

    Attributes:
        start: Position of the first one.
        rows: ``[n, hidden_size]`` behind the last norm, padding cut off.
    """

    start: int
    rows: Tensor


def head_rows(buckets: Buckets) -> int:
    """Rows of the LM-head program: no more than a prompt's chunk can have."""
    return min(MOST_HEAD_ROWS, buckets.prefill_tokens[-1])


def head_program_name(rows: int) -> str:
    """Name of the LM-head program, the same wherever it is planned, compiled or logged."""
    return f"lm_head_r{rows}"


class _Head(Protocol):
    def compute_logits(self, hidden_states: Tensor) -> Tensor: ...


class HeadProgram:
    """Logits of any number of rows, through one program of a fixed number of rows."""

    def __init__(self, model: _Head, programs: Programs, rows: int) -> None:
        self._model = model
        self._programs = programs
        self._rows = rows
        self.name = head_program_name(rows)

    def __call__(self, hidden: Tensor) -> Tensor:
        """``[n, hidden_size]`` to ``[n, vocab_size]``; every rank of the model has to call it."""
        pieces = hidden.split(self._rows)
        return torch.cat([self._run(piece)[: piece.shape[0]] for piece in pieces])

    def _run(self, piece: Tensor) -> Tensor:
        padded = piece.new_zeros(self._rows, piece.shape[1])
        padded[: piece.shape[0]] = piece
        logits: Tensor = self._programs.call(self.name, self._model.compute_logits, (padded,))
        return logits
