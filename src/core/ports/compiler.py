# SPDX-License-Identifier: Apache-2.0
"""Port: turn a callable and an example call into a program for that call's signature."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import attrs

Program = Callable[..., Any]
"""A compiled callable. Called with another signature than its own, it raises."""


@attrs.frozen
class Origins:
    """Where programs came from.

    Attributes:
        cached: Programs that were found where an earlier start kept them.
        compiled: Programs that had to be compiled.
        seconds: Time for both, without running them.
    """

    cached: int = 0
    compiled: int = 0
    seconds: float = 0.0


class Compiler(abc.ABC):
    """Compiles programs until it is sealed.

    The *signature* of a call is the structure of its arguments, the shape, dtype and
    device of each tensor and the value of each other leaf; see
    :func:`trnport.core.signature.signature_of`.
    """

    @property
    def flags(self) -> str:
        """How it compiles, for a message about a failure; empty when there is nothing to set."""
        return ""

    @property
    def origins(self) -> Origins:
        """Where the programs so far came from; zeros where nothing is compiled."""
        return Origins()

    @abc.abstractmethod
    def compile(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Program:
        """Compile ``function`` for the signature of an example call.

        The example only supplies shapes: the function is not necessarily run on it, and
        running it must not be relied on.

        Args:
            name: Name for logs and cache entries, such as "prefill_s128".
            function: The callable. One function compiled twice for one signature gives
                one program.
            args: Positional arguments of the example call.
            kwargs: Keyword arguments of the example call.

        Raises:
            UnseenSignatureError: The compiler is sealed and this signature is new.
        """

    @abc.abstractmethod
    def cache_key(
        self, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> str:
        """A digest of everything that changes the program compiled for this call."""

    @abc.abstractmethod
    def seal(self) -> None:
        """From now on, compiling a signature that is not known raises. Idempotent."""
