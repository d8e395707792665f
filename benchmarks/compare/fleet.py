# SPDX-License-Identifier: Apache-2.0
"""Engines that live side by side and work in turns; one that fails does not lose the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from benchmarks.compare.child import EngineError
from benchmarks.compare.peers import InstallError

MOST_STARTS = 2


class Member(Protocol):
    """Something that can be paused, such as a Runner or a Server."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...


_M = TypeVar("_M", bound=Member)
_T = TypeVar("_T")


def say(text: str) -> None:
    """Tell the person who waits."""
    print(text, file=sys.stderr, flush=True)


class Fleet:
    """Opens each engine at its first turn, pauses it between turns, and gives up on it in the end.

    Args:
        openers: By name of the engine.
        opened: Called with the name and the engine when it is ready.
    """

    def __init__(
        self,
        openers: Mapping[str, Callable[[], _M]],
        opened: Callable[[str, _M], None] = lambda name, member: None,
    ) -> None:
        self._openers, self._opened = openers, opened
        self._members: dict[str, Any] = {}
        self._starts = dict.fromkeys(openers, 0)
        self._problems: dict[str, str] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._members):
            self._close(name)

    def turn(self, name: str, work: Callable[[Any], _T]) -> _T:
        """Let one engine work while the others are stopped.

        Raises:
            EngineError: It could not be opened or failed; the next turn tries a new one, twice at
                most.
        """
        member = self._member(name)
        member.resume()
        try:
            done = work(member)
        except EngineError:
            self._close(name)
            raise
        member.pause()
        return done

    def _member(self, name: str) -> Any:
        if name in self._members:
            return self._members[name]
        if self._starts[name] >= MOST_STARTS:
            raise EngineError(f"given up: {self._problems.get(name, 'failed before')}"[:300])
        self._starts[name] += 1
        say(f"    starting {name}")
        try:
            member = self._openers[name]()
        except (EngineError, InstallError, OSError) as error:
            self._problems[name] = str(error)
            if isinstance(error, InstallError):
                self._starts[name] = MOST_STARTS
            raise EngineError(f"cannot start: {error}"[:400]) from error
        self._members[name] = member
        self._opened(name, member)
        return member

    def _close(self, name: str) -> None:
        self._members.pop(name).close()
