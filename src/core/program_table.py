# SPDX-License-Identifier: Apache-2.0
"""What every compiler keeps: one program for each function and signature, until it is sealed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from trnport.core.errors import UnseenSignatureError
from trnport.core.known_call import KnownCall
from trnport.core.signature import difference, signature_of


class Named(Protocol):
    """A program that can be told from others in a message."""

    @property
    def name(self) -> str:
        """Name it was compiled under."""

    @property
    def signature(self) -> str:
        """The signature it accepts."""


_P = TypeVar("_P", bound=Named)


class ProgramTable(Generic[_P]):
    """Programs by function and signature, in order of compilation."""

    def __init__(self) -> None:
        self._programs: dict[tuple[Callable[..., Any], str], _P] = {}
        self.sealed = False

    def __iter__(self) -> Iterator[_P]:
        """The programs."""
        return iter(self._programs.values())

    def get_or_make(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        make: Callable[[str], _P],
    ) -> _P:
        """The program of a call.

        Args:
            name: Name for messages.
            function: What it computes.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
            make: Makes a new program of the call's signature.

        Raises:
            UnseenSignatureError: The table is sealed and has no such program.
        """
        signature = signature_of(args, kwargs)
        program = self._programs.get((function, signature))
        if program is not None:
            return program
        if self.sealed:
            raise UnseenSignatureError(self._refusal(name, function, signature))
        program = make(signature)
        self._programs[function, signature] = program
        return program

    def _refusal(self, name: str, function: Callable[..., Any], signature: str) -> str:
        known = [p for (f, _), p in self._programs.items() if f == function]
        names = sorted({program.name for program in known})
        refusal = f"program {name!r} was not compiled before sealing; compiled are {names}"
        twin = next((program for program in known if program.name == name), None)
        return refusal if twin is None else f"{refusal}; {difference(twin.signature, signature)}"


def require_signature(program: Named, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call that is not the program's.

    Raises:
        UnseenSignatureError: The message shows where the signatures differ.
    """
    signature = signature_of(args, kwargs)
    if signature != program.signature:
        raise UnseenSignatureError(
            f"program {program.name!r} was called with another signature than its own; "
            f"{difference(program.signature, signature)}"
        )


class CallCheck:
    """:func:`require_signature` for one program, quick from the second call on."""

    def __init__(self) -> None:
        self._known: KnownCall | None = None

    def require(self, program: Named, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse a call that is not the program's.

        Raises:
            UnseenSignatureError: As :func:`require_signature`.
        """
        if self._known is None or self._known.tensors(args, kwargs) is None:
            require_signature(program, args, kwargs)
            self._known = KnownCall(args, kwargs)
