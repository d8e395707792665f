# SPDX-License-Identifier: Apache-2.0
"""`nki.jit`, kernels, and their execution on one or two simulated cores."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.arguments import Arguments
from trnport.adapters.nki.simulator.counters import Counters
from trnport.adapters.nki.simulator.rendezvous import CancelledError, Rendezvous
from trnport.adapters.nki.simulator.rules import NkiValidationError, Rule, add
from trnport.adapters.nki.simulator.targets import target_named

add(
    Rule(
        "NKI-LNC",
        "A kernel runs on 1 or 2 cores; the launch index is that bare int.",
        "nki.jit: LNC degree",
    ),
)


def _checked_lnc(lnc: object) -> int:
    if type(lnc) is not int or lnc not in {1, 2}:
        raise NkiValidationError(
            f"NKI only supports LNC 1 or 2, but got {lnc!r}. Write kernel[2]. [NKI-LNC]"
        )
    return lnc


class Kernel:
    """A function that runs on the device.

    Attributes:
        fn: The function.
        lnc: Cores of a launch; None if the caller did not say.
    """

    def __init__(self, fn: Callable[..., Any], lnc: int | None = None) -> None:
        self.fn = fn
        self.lnc = lnc
        functools.update_wrapper(self, fn)

    def __getitem__(self, lnc: object) -> Kernel:
        return Kernel(self.fn, _checked_lnc(lnc))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run inside the kernel that calls this one, or simulate with the defaults."""
        if machine.current_or_none() is not None:
            return self.fn(*args, **kwargs)
        return simulate(self)(*args, **kwargs)


def jit(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Mark a function as a kernel.

    Args:
        fn: The function; None when used as `@jit(...)`.
        **kwargs: Options of older releases; `platform_target` is refused as in NKI.

    Raises:
        NkiValidationError: `platform_target` was given.
    """
    if "platform_target" in kwargs:
        raise NkiValidationError(
            "nki.jit(platform_target=...) was removed: name the target in simulate(target=...)"
        )
    if fn is None:
        return lambda function: jit(function, **kwargs)
    return fn if isinstance(fn, Kernel) else Kernel(fn)


class Simulation:
    """A kernel that runs on simulated cores when called.

    Attributes:
        counters: What each core did in the last call.
    """

    def __init__(
        self, kernel: Kernel, target: str, lnc: int, *, precise: bool, strict: bool
    ) -> None:
        self.kernel = kernel
        self.target = target_named(target)
        self.lnc = lnc
        self.precise = precise
        self.strict = strict
        self.counters: list[Counters] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel.

        Args:
            *args: numpy or torch arrays, constants, tuples; arrays the kernel writes change.
            **kwargs: The same by name.

        Returns:
            The kernel's results as numpy arrays, or torch tensors if an argument was one.

        Raises:
            RuleViolationError: The kernel breaks a rule.
        """
        meeting = Rendezvous(self.lnc) if self.lnc > 1 else None
        shared: list[Any] = []
        cores = [
            machine.Core(
                self.target,
                index=index,
                lnc=self.lnc,
                precise=self.precise,
                strict=self.strict,
                exchange=meeting,
                shared=shared,
            )
            for index in range(self.lnc)
        ]
        self.counters = [core.counters for core in cores]
        arguments = Arguments(self.precise)
        with machine.running(cores[0]):
            names = _names(self.kernel.fn, len(args))
            wrapped = [arguments.wrap(v, n) for v, n in zip(args, names, strict=True)]
            named = {name: arguments.wrap(value, name) for name, value in kwargs.items()}
        call = functools.partial(self.kernel.fn, *wrapped, **named)
        result = _run_alone(cores[0], call) if meeting is None else _run(cores, call, meeting)
        arguments.finish()
        with machine.running(cores[0]):
            return arguments.unwrap(result)


def _names(fn: Callable[..., Any], count: int) -> list[str]:
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        names = []
    return [*names, *(f"argument {i}" for i in range(len(names), count))][:count]


def _run_alone(core: machine.Core, call: Callable[[], Any]) -> Any:
    with machine.running(core):
        return call()


def _run(cores: list[machine.Core], call: Callable[[], Any], meeting: Rendezvous) -> Any:
    results: dict[int, Any] = {}
    errors: list[BaseException] = []

    def work(core: machine.Core) -> None:
        try:
            with machine.running(core), meeting.taking_turns(core.index):
                results[core.index] = call()
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(core,), daemon=True) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(errors, key=lambda e: isinstance(e, CancelledError)):
        raise error
    return results[0]


def simulate(
    kernel: Any,
    target: str = "trn2",
    lnc: int | None = None,
    precise: bool = False,
    strict: bool = True,
) -> Simulation:
    """Return a callable that runs a kernel on simulated cores.

    Args:
        kernel: Function, `nki.jit` kernel or `kernel[2]`.
        target: "trn2" or "trn3".
        lnc: Cores; by default what `kernel[...]` says, else 1.
        precise: Hold every float as float32, to tell a logic error from rounding.
        strict: Also apply the rules that are stricter than public tools.

    Raises:
        NkiValidationError: `lnc` is not 1 or 2.
        ValueError: The target is unknown.
    """
    found = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    cores = lnc if lnc is not None else (found.lnc or 1)
    return Simulation(found, target, _checked_lnc(cores), precise=precise, strict=strict)
