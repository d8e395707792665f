# SPDX-License-Identifier: Apache-2.0
"""A compiler that remembers what it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from trnport.core.ports.compiler import Compiler, Program
from trnport.core.signature import signature_of


@attrs.frozen
class CompilerRecord:
    """One request to compile, or one call of a program.

    Attributes:
        name: Name of the program; for a call, the name of its first compilation.
        signature: See :func:`trnport.core.signature.signature_of`.
    """

    name: str
    signature: str


class RecordingCompiler(Compiler):
    """Records compilations and calls around another compiler.

    Only what the inner compiler accepted is recorded, so after warm-up and a seal, a growing
    :attr:`calls` with an unchanged :attr:`compilations` is what serving should look like.

    >>> from trnport.adapters.eager import EagerCompiler
    >>> compiler = RecordingCompiler(EagerCompiler())
    >>> double = compiler.compile("double", lambda x: 2 * x, (3,))
    >>> double(3), double(3)
    (6, 6)
    >>> compiler.compilation_count, compiler.call_counts()
    (1, {'double': 2})

    Args:
        inner: The compiler that compiles.

    Attributes:
        compilations: Requests that gave a new program, in order.
        repeats: Requests that gave a known one.
        calls: Calls of programs that succeeded.
        sealed: Whether :meth:`seal` was called.
    """

    def __init__(self, inner: Compiler) -> None:
        self._inner = inner
        # By identity, keeping the inner program alive: programs need not be hashable.
        self._programs: dict[int, tuple[Program, Program]] = {}
        self.compilations: list[CompilerRecord] = []
        self.repeats: list[CompilerRecord] = []
        self.calls: list[CompilerRecord] = []
        self.sealed = False

    @property
    def flags(self) -> str:
        """Those of the inner compiler."""
        return self._inner.flags

    @property
    def compilation_count(self) -> int:
        """Number of different programs."""
        return len(self.compilations)

    def call_counts(self) -> dict[str, int]:
        """Number of calls by program name, in order of compilation."""
        counts = {record.name: 0 for record in self.compilations}
        for record in self.calls:
            counts[record.name] += 1
        return counts

    def compile(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Program:
        """Compile with the inner compiler."""
        program = self._inner.compile(name, function, args, kwargs)
        record = CompilerRecord(name, signature_of(args, kwargs))
        if id(program) in self._programs:
            self.repeats.append(record)
        else:
            self.compilations.append(record)
            self._programs[id(program)] = (program, self._recorded(name, program))
        return self._programs[id(program)][1]

    def cache_key(
        self, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> str:
        """The inner compiler's key."""
        return self._inner.cache_key(name, args, kwargs)

    def seal(self) -> None:
        """Seal the inner compiler."""
        self.sealed = True
        self._inner.seal()

    def _recorded(self, name: str, program: Program) -> Program:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            result = program(*args, **kwargs)
            self.calls.append(CompilerRecord(name, signature_of(args, kwargs)))
            return result

        return recorded
