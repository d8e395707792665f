# SPDX-License-Identifier: Apache-2.0
"""How two cores meet. Only one core runs at a time, so that a launch is deterministic."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from trnport.adapters.nki.simulator.rules import NkiError


class DeadlockError(NkiError):
    """A core waits for one that will never come."""


class CancelledError(NkiError):
    """The other core failed first."""


class Rendezvous:
    """Meeting point of the cores of one launch.

    A core runs until it waits or ends; then the next one runs. All cores must wait for the same
    thing: anything else can never be resolved, and is reported at once.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._state = threading.Condition()
        self._turn = 0
        self._waiting: dict[int, tuple[Any, Any]] = {}
        self._done: set[int] = set()
        self._met: dict[int, Any] = {}
        self._failure: NkiError | None = None
        self.unsettled: list[Any] = []  # storages that a core wrote since the last meeting

    @contextlib.contextmanager
    def taking_turns(self, index: int) -> Iterator[None]:
        """Run one core's kernel: wait for its turn first, pass the turn on at the end."""
        with self._state:
            self._state.wait_for(lambda: self._turn == index or self._failure is not None)
            if self._failure is not None:
                raise self._failure
        try:
            yield
        except BaseException:
            with self._state:
                self._fail(CancelledError(f"core {index} failed first"))
            raise
        with self._state:
            self._done.add(index)
            self._check()
            self._pass_on(index)

    def meet(self, index: int, what: tuple[Any, ...], payload: Any = None) -> dict[int, Any]:
        """Wait until every core is here for the same thing.

        Args:
            index: The calling core.
            what: Instruction and identity of the meeting; equal on every core.
            payload: Value to hand to the others.

        Returns:
            Payload by core.

        Raises:
            DeadlockError: Another core has ended, or waits for something else.
        """
        with self._state:
            self._waiting[index] = (what, payload)
            self._check()
            if len(self._waiting) == self._cores and self._failure is None:
                self._met = {core: value for core, (_, value) in self._waiting.items()}
                self._waiting.clear()
                for storage in self.unsettled:
                    storage.owners = None
                self.unsettled.clear()
                return dict(self._met)
            self._pass_on(index)
            self._state.wait_for(
                lambda: (
                    self._failure is not None
                    or (index not in self._waiting and self._turn == index)
                )
            )
            if self._failure is not None:
                raise self._failure
            return dict(self._met)

    def _pass_on(self, index: int) -> None:
        for step in range(1, self._cores + 1):
            candidate = (index + step) % self._cores
            if candidate not in self._done and (candidate not in self._waiting):
                self._turn = candidate
                break
        self._state.notify_all()

    def _check(self) -> None:
        if not self._waiting:
            return
        wanted = {what for what, _ in self._waiting.values()}
        stuck = self._done or len(wanted) > 1
        if stuck and len(self._done) + len(self._waiting) == self._cores:
            story = [f"core {core} waits at {what}" for core, (what, _) in self._waiting.items()]
            story += [f"core {core} has returned" for core in sorted(self._done)]
            self._fail(
                DeadlockError(f"deadlock: {', '.join(story)}: both cores must reach the same one")
            )

    def _fail(self, error: NkiError) -> None:
        if self._failure is None:
            self._failure = error
        self._done.update(range(self._cores))
        self._state.notify_all()
