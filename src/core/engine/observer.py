# SPDX-License-Identifier: Apache-2.0
"""What an engine tells about its programs while they run.

Counts, names and times only: no observer ever sees a token or a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import attrs

from trnport.core.engine.batch import Work
from trnport.core.engine.buckets import Buckets

Phase = Literal["prefill", "decode"]


@attrs.frozen
class Execution:
    """One run of a program. Each size comes as what was asked for and what the program ran.

    Attributes:
        name: The program.
        phase: "prefill" or "decode".
        request_ids: Requests computed, in the order of the rows.
        tokens: New tokens.
        padded_tokens: Rows of the token tensor.
        padded_seqs: Sequences the program has room for; ``len(request_ids)`` of them are real.
        context: Cached tokens that the new ones can attend to, summed over sequences; a
            decode's own token counts, since it is written first.
        padded_context: The same for the program: context bucket times ``padded_seqs``.
    """

    name: str
    phase: Phase
    request_ids: tuple[str, ...]
    tokens: int
    padded_tokens: int
    padded_seqs: int
    context: int
    padded_context: int

    @property
    def seqs(self) -> int:
        """Sequences computed."""
        return len(self.request_ids)


class StepObserver(Protocol):
    """Told about programs, in the thread that runs them; so it has to be quick."""

    def compiled(self, name: str, seconds: float) -> None:
        """A program exists and has run once.

        Args:
            name: The program.
            seconds: Compilation and first run.
        """

    def executed(self, execution: Execution, seconds: float) -> None:
        """A program has run for requests; warm-up runs are not reported.

        Args:
            execution: What ran.
            seconds: Until the program returned.
        """


class SilentObserver:
    """Tells nobody."""

    def compiled(self, name: str, seconds: float) -> None:
        """Do nothing."""

    def executed(self, execution: Execution, seconds: float) -> None:
        """Do nothing."""


@attrs.frozen
class Observers:
    """Tells several observers, one after the other."""

    members: tuple[StepObserver, ...]

    def compiled(self, name: str, seconds: float) -> None:
        """Tell each of them."""
        for member in self.members:
            member.compiled(name, seconds)

    def executed(self, execution: Execution, seconds: float) -> None:
        """Tell each of them."""
        for member in self.members:
            member.executed(execution, seconds)


def describe(name: str, works: Sequence[Work], rows: int, buckets: Buckets) -> Execution:
    """Describe a program's run before it advances its requests.

    Args:
        name: The program.
        works: Prefills, or decodes; at least one.
        rows: Rows of the program's token tensor.
        buckets: The shapes it was chosen from.
    """
    starts = [work.request.num_computed_tokens for work in works]
    tokens = sum(work.num_tokens for work in works)
    ids = tuple(work.request.request_id for work in works)
    if works[0].is_decode:
        padded_context = rows * buckets.context(max(starts) + 1)
        context = sum(starts) + len(works)
        return Execution(name, "decode", ids, tokens, rows, rows, context, padded_context)
    seqs = buckets.prefill_seqs
    padded_context = seqs * buckets.prior_context(max(starts))
    return Execution(name, "prefill", ids, tokens, rows, seqs, sum(starts), padded_context)
