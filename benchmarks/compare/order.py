# SPDX-License-Identifier: Apache-2.0
"""Who is measured when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def rotated(items: Sequence[_T], turns: int) -> list[_T]:
    """The items in their order, starting ``turns`` places later."""
    start = turns % len(items) if items else 0
    return [*items[start:], *items[:start]]


def turns(
    rounds: int, workloads: Sequence[_T], engines: Sequence[str]
) -> Iterator[tuple[int, _T, str]]:
    """Round, workload and engine of each measurement.

    All engines do one workload before the next one begins, so that a busy minute of the machine
    hits all of them alike; the first one changes from workload to workload and round to round.
    """
    for number in range(rounds):
        for place, workload in enumerate(workloads):
            for engine in rotated(engines, number + place):
                yield number, workload, engine
