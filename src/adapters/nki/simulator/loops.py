# SPDX-License-Identifier: Apache-2.0
"""Loops of `nki.language`: unrolled ones are `range`; dynamic ones hand out registers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.handles import VirtualRegister
from trnport.adapters.nki.simulator.rules import NkiError, Rule, add, violation

_ENDLESS = 1_000_000  # iterations after which a while loop is surely a bug

add(
    Rule(
        "NKI-LOOP-BOUNDS",
        "Loop bounds are ints or registers; the step is a positive int.",
        "nki.language.fori_loop",
    ),
    Rule(
        "NKI-LOOP-CONDITION",
        "A while loop starts from a register, and its body returns one.",
        "nki.language.while_loop",
    ),
    Rule(
        "NKI-LOOP-NO-REORDER",
        "Dynamic loops do not go inside nl.no_reorder().",
        "nki.language.no_reorder",
    ),
)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Alias of `range` (deprecated in NKI)."""
    return range(start) if stop is None else range(start, stop, step)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
    """Call `body_fun(i)` for i from `lower` to `upper` (exclusive).

    Args:
        lower: int or register.
        upper: int or register.
        body_fun: Takes the induction register; its effects are in SBUF and HBM.
        step: Positive int.
    """
    for register in _dynamic("fori_loop", lower, upper, step):
        body_fun(register)


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """Yield induction registers (deprecated in NKI: use `fori_loop`)."""
    lower, upper = (0, start) if stop is None else (start, stop)
    yield from _dynamic("dynamic_range", lower, upper, step)


def _dynamic(name: str, lower: Any, upper: Any, step: int) -> Iterator[VirtualRegister]:
    if type(step) is not int or step < 1:
        violation("NKI-LOOP-BOUNDS", f"nl.{name}", "step", step, "a positive int")
    first, last = (_bound(name, bound) for bound in (lower, upper))
    for value in range(first, last, step):
        with _inside(name):
            yield VirtualRegister(value, frozen=True)


def _bound(name: str, bound: Any) -> int:
    if isinstance(bound, VirtualRegister):
        return bound.peek(f"nl.{name}")
    if type(bound) is not int:
        violation("NKI-LOOP-BOUNDS", f"nl.{name}", "bound", repr(bound), "an int or a register")
    return bound


def while_loop(init: Any, body_fun: Callable[[Any], Any]) -> None:
    """Run `register = body_fun(register)` while the register is not zero.

    Args:
        init: First condition.
        body_fun: Takes the condition, returns the next one.
    """
    condition = init
    for _ in range(_ENDLESS):
        if not isinstance(condition, VirtualRegister):
            violation(
                "NKI-LOOP-CONDITION", "nl.while_loop", "condition", repr(condition), "a register"
            )
        value = condition.peek("nl.while_loop")
        if value == 0:
            return
        with _inside("while_loop"):
            condition = body_fun(VirtualRegister(value))
    raise NkiError(f"nl.while_loop: still running after {_ENDLESS} iterations")


@contextlib.contextmanager
def _inside(name: str) -> Iterator[None]:
    core = machine.current()
    if core.no_reorder:
        violation("NKI-LOOP-NO-REORDER", f"nl.{name}", "place", "inside no_reorder", "outside")
    core.loop_depth += 1
    try:
        yield
    finally:
        core.loop_depth -= 1


@contextlib.contextmanager
def no_reorder() -> Iterator[None]:
    """Keep the order of instructions; program order is what happens here anyway."""
    core = machine.current()
    before, core.no_reorder = core.no_reorder, True
    try:
        yield
    finally:
        core.no_reorder = before
