# SPDX-License-Identifier: Apache-2.0
"""The programs of an engine: compile on first use, run, tell an observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch

from trnport.core.engine.batch import Work
from trnport.core.engine.buckets import Buckets
from trnport.core.engine.observer import SilentObserver, StepObserver, describe
from trnport.core.errors import CompilationError, TrnportError, UnseenSignatureError
from trnport.core.metadata import ModelOutput, StepInput
from trnport.core.model import CausalLM
from trnport.core.ports.compiler import Compiler, Origins, Program
from trnport.core.signature import signature_of

SIGNATURE_SHOWN = 500
"""Characters of a signature in a message; with many layers a whole one runs to thousands."""


class Programs:
    """One model's programs by name."""

    def __init__(
        self,
        model: CausalLM,
        compiler: Compiler,
        buckets: Buckets,
        observer: StepObserver | None = None,
    ) -> None:
        self._model = model
        self._compiler = compiler
        self._buckets = buckets
        self._observer = observer or SilentObserver()
        self._programs: dict[str, Program] = {}
        self._warming_up = False
        self._planned: frozenset[str] | None = None

    @property
    def names(self) -> list[str]:
        """Programs that exist, in order of compilation."""
        return list(self._programs)

    @property
    def origins(self) -> Origins:
        """Where they came from."""
        return self._compiler.origins

    @contextmanager
    def warm_up(self) -> Iterator[None]:
        """Runs inside are not reported; afterwards no new program may appear."""
        self._warming_up = True
        try:
            yield
        finally:
            self._warming_up = False
        self._compiler.seal()

    def plan(self, names: Iterable[str]) -> None:
        """Compile these programs at their first use, and never any other one."""
        self._planned = frozenset(names)

    def run(self, step: StepInput, works: list[Work]) -> ModelOutput:
        """Call the program of a step.

        Args:
            step: Its input.
            works: What it computes, in the order of the rows.

        Raises:
            CompilationError: A new program failed; the message names it, the compiler's flags
                and the signature.
        """
        started = time.perf_counter()
        output: ModelOutput = self.call(step.name, self._model, kwargs=step.model_kwargs())
        if not self._warming_up:
            seconds = time.perf_counter() - started
            rows = step.input_ids.shape[0]
            self._observer.executed(describe(step.name, works, rows, self._buckets), seconds)
        return output

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Call the program of a function, which is compiled at its first call.

        Raises:
            CompilationError: As :meth:`run`.
        """
        with torch.inference_mode():
            if name in self._programs:
                return self._programs[name](*args, **kwargs)
            started = time.perf_counter()
            output = self._first_call(name, function, args, kwargs)
        self._observer.compiled(name, time.perf_counter() - started)
        return output

    def _first_call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if self._planned is not None and name not in self._planned:
            raise UnseenSignatureError(
                f"program {name!r} is none of those planned: {sorted(self._planned)}"
            )
        # Together, since a compiler may put its work off until the first call.
        try:
            program = self._compiler.compile(name, function, args, kwargs)
            output = program(*args, **kwargs)
        except TrnportError:
            raise
        except Exception as error:
            signature = signature_of(args, dict(kwargs))[:SIGNATURE_SHOWN]
            raise CompilationError(self._failure(name, signature, error)) from error
        self._programs[name] = program
        if self._planned is not None and self._planned <= self._programs.keys():
            self._compiler.seal()
        return output

    def _failure(self, name: str, signature: str, error: Exception) -> str:
        return (
            f"program {name!r} failed to compile or to run for the first time: "
            f"{type(error).__name__}: {error}; compiler: {type(self._compiler).__name__}, flags: "
            f"{self._compiler.flags or 'none'}; signature: {signature}"
        )
