# SPDX-License-Identifier: Apache-2.0
"""Programs that are the functions themselves, held to their signature."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch

from trnport.core.ports.compiler import Compiler, Program
from trnport.core.program_table import CallCheck, ProgramTable
from trnport.core.signature import signature_of


@attrs.frozen(eq=False)
class EagerProgram:
    """A function that accepts calls of one signature only.

    Attributes:
        name: Name it was compiled under.
        function: What it runs.
        signature: The signature it accepts.
    """

    name: str
    function: Callable[..., Any]
    signature: str
    _check: CallCheck = attrs.field(factory=CallCheck, init=False, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function.

        Raises:
            UnseenSignatureError: The call has another signature than the program.
        """
        self._check.require(self, args, kwargs)
        return self.function(*args, **kwargs)


class EagerCompiler(Compiler):
    """Runs functions as they are, and refuses what a real compiler would refuse.

    So a missing warm-up bucket, or a shape that varies, fails here in a second and not on the
    device after an hour of compiling.
    """

    def __init__(self) -> None:
        self._programs: ProgramTable[EagerProgram] = ProgramTable()

    def compile(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Program:
        """Wrap ``function``; it is not called."""

        def make(signature: str) -> EagerProgram:
            return EagerProgram(name, function, signature)

        return self._programs.get_or_make(name, function, args, kwargs, make)

    def cache_key(
        self, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> str:
        """SHA-256 of the name, the signature and torch's version."""
        parts = ("eager", torch.__version__, name, signature_of(args, kwargs))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def seal(self) -> None:
        """Stop accepting new signatures."""
        self._programs.sealed = True
