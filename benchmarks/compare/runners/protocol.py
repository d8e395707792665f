# SPDX-License-Identifier: Apache-2.0
"""The engine's side of the conversation: one JSON line asks, one answers.

The first argument of a runner is a JSON object of options, among them the number of the open file
that answers go to. Its stdout belongs to the engine, which may log there.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Trace = dict[str, float]
"""Seconds since the requests were handed over, and tokens:

``first``: when every request had its first token; ``tokens_at_first``: tokens of all requests by
then; ``end`` and ``tokens``: the same when all were finished.
"""


class Engine(Protocol):
    """What a runner has to offer."""

    about: dict[str, str]
    """Versions and settings worth a note."""

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Trace:
        """Generate greedily, past any end-of-text token."""
        ...


class TokenClock:
    """Turns counts of tokens, as they grow, into a trace."""

    def __init__(self, rows: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._rows, self._now = rows, now
        self._started = now()
        self._first: tuple[float, int] | None = None

    def note(self, counts: Sequence[int]) -> None:
        """Take the number of tokens that each request with any has by now."""
        if self._first is None and len(counts) == self._rows and all(counts):
            self._first = (self._now() - self._started, sum(counts))

    def finish(self, counts: Sequence[int], new_tokens: int) -> Trace:
        """Check the final counts and close the trace."""
        end = self._now() - self._started
        if list(counts) != [new_tokens] * self._rows:
            raise RuntimeError(f"wanted {self._rows} times {new_tokens} tokens, got {counts}")
        self.note(counts)
        assert self._first is not None
        first, tokens = self._first
        return {"first": first, "tokens_at_first": tokens, "end": end, "tokens": sum(counts)}


def serve(open_engine: Callable[[dict[str, Any]], Engine]) -> None:
    """Open the engine, then answer until stdin is closed."""
    options = json.loads(sys.argv[1])
    descriptor = options.pop("answers")
    os.set_inheritable(descriptor, False)
    with os.fdopen(descriptor, "w", buffering=1) as answers:

        def answer(make: Callable[[], dict[str, Any]]) -> None:
            try:
                said = make()
            except Exception as error:  # noqa: BLE001 - the other side decides what to do about it
                traceback.print_exc()
                said = {"error": f"{type(error).__name__}: {error}"[:300]}
            answers.write(json.dumps(said) + "\n")

        opened: list[Engine] = []

        def ready() -> dict[str, Any]:
            opened.append(open_engine(options))
            opened[0].generate([list(range(100, 116))], 1)
            return {"ready": opened[0].about}

        answer(ready)
        for line in sys.stdin:
            answer(lambda line=line: {"trace": opened[0].generate(**json.loads(line))})
