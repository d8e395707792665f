# SPDX-License-Identifier: Apache-2.0
"""Listen to what simulated kernels do: one record for each launch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import attrs


@attrs.frozen
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: Name of the function.
        cores: The simulator's Counters, one for each physical core.
    """

    kernel: str
    cores: tuple[Any, ...]


_listeners: ContextVar[tuple[list[Launch], ...]] = ContextVar("listeners", default=())


@contextlib.contextmanager
def launches() -> Iterator[list[Launch]]:
    """A list that grows by every launch inside the ``with`` block, in this thread."""
    heard: list[Launch] = []
    token = _listeners.set((*_listeners.get(), heard))
    try:
        yield heard
    finally:
        _listeners.reset(token)


def note(kernel: str, cores: Sequence[Any]) -> None:
    """Tell the listeners about a launch."""
    for heard in _listeners.get():
        heard.append(Launch(kernel, tuple(cores)))
