# SPDX-License-Identifier: Apache-2.0
"""Programs that are the functions themselves, held to their signature."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch

from trnport.core.errors import UnseenSignatureError
from trnport.core.ports.compiler import Compiler, Program
from trnport.core.signature import difference, signature_of


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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function.

        Raises:
            UnseenSignatureError: The call has another signature than the program.
        """
        signature = signature_of(args, kwargs)
        if signature != self.signature:
            raise UnseenSignatureError(
                f"program {self.name!r} was called with another signature than its own; "
                f"{difference(self.signature, signature)}"
            )
        return self.function(*args, **kwargs)


class EagerCompiler(Compiler):
    """Runs functions as they are, and refuses what a real compiler would refuse.

    So a missing warm-up bucket, or a shape that varies, fails here in a second and not on the
    device after an hour of compiling.
    """

    def __init__(self) -> None:
        self._programs: dict[tuple[Callable[..., Any], str], EagerProgram] = {}
        self._sealed = False

    def compile(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Program:
        """Wrap ``function``; it is not called."""
        signature = signature_of(args, kwargs)
        program = self._programs.get((function, signature))
        if program is not None:
            return program
        if self._sealed:
            raise UnseenSignatureError(self._refusal(name, function, signature))
        program = EagerProgram(name, function, signature)
        self._programs[function, signature] = program
        return program

    def cache_key(
        self, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> str:
        """SHA-256 of the name, the signature and torch's version."""
        parts = ("eager", torch.__version__, name, signature_of(args, kwargs))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def seal(self) -> None:
        """Stop accepting new signatures."""
        self._sealed = True

    def _refusal(self, name: str, function: Callable[..., Any], signature: str) -> str:
        known = [p for (f, _), p in self._programs.items() if f == function]
        names = sorted({program.name for program in known})
        refusal = f"program {name!r} was not compiled before sealing; compiled are {names}"
        twin = next((program for program in known if program.name == name), None)
        return refusal if twin is None else f"{refusal}; {difference(twin.signature, signature)}"
