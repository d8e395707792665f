# SPDX-License-Identifier: Apache-2.0
"""Small objects kernels hold: configuration objects, instruction handles and registers."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any, NoReturn

from trnport.adapters.nki.simulator.rules import Rule, add, violation

add(
    Rule(
        "NKI-REGISTER-VALUE",
        "A register's value is unknown while the kernel is built: no int(), if, while or range().",
        "nki.isa.VirtualRegister",
    ),
    Rule(
        "NKI-REGISTER-FROZEN",
        "A loop's induction register may be read, not written.",
        "nki.language.fori_loop",
    ),
    Rule(
        "NKI-REGISTER-EMPTY",
        "A register must hold a value before it is read.",
        "nki.isa.register_alloc",
    ),
)


class _AnyField(type):
    """Let a dataclass take names that are no fields of it: plain class attributes, say."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        known = _accepted(cls)
        extra = () if known is None else kwargs.keys() - known
        if not extra:
            return super().__call__(*args, **kwargs)
        kind: Any = cls
        made = object.__new__(kind)
        for name in extra:
            object.__setattr__(made, name, kwargs.pop(name))
        made.__init__(*args, **kwargs)
        return made


@functools.cache
def _accepted(cls: type) -> frozenset[str] | None:
    """Names that a class's constructor takes; None if it takes any."""
    constructor: Any = getattr(cls, "__init__")  # noqa: B009 - mypy refuses the attribute
    parameters = inspect.signature(constructor).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


class NKIObject(metaclass=_AnyField):
    """Base of configuration objects in kernels.

    A plain subclass takes annotated fields as arguments and any other by name; defaults come
    from the class, and `__post_init__` runs if there is one. Dataclasses keep
    their own constructor and take other names too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = [
            name for base in reversed(type(self).__mro__) for name in inspect.get_annotations(base)
        ]
        values = dict(zip(names, args, strict=False)) | kwargs
        for name, value in values.items():
            object.__setattr__(self, name, value)
        after = getattr(self, "__post_init__", None)
        if after is not None and not dataclasses.is_dataclass(self):
            after()


class NkiInstruction:
    """Handle of an issued instruction. Program order already satisfies every dependency here."""

    __slots__ = ("depth", "name")

    def __init__(self, name: str, depth: int = 0) -> None:
        self.name = name
        self.depth = depth

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Add scheduling edges; returns self.

        Raises:
            TypeError: A producer is not an instruction.
        """
        for producer in producers:
            if not isinstance(producer, NkiInstruction):
                raise TypeError(f"depends_on takes instruction handles, got {producer!r}")
        return self

    def __repr__(self) -> str:
        return f"<NkiInstruction {self.name}>"


class VirtualRegister:
    """A 32-bit register whose value only instructions may use."""

    __slots__ = ("_value", "frozen")

    def __init__(self, state: int | None = None, frozen: bool = False) -> None:
        self._value = state
        self.frozen = frozen

    def peek(self, instruction: str) -> int:
        """Return the value for an instruction that reads the register.

        Raises:
            RuleViolationError: Nothing was loaded yet.
        """
        if self._value is None:
            violation("NKI-REGISTER-EMPTY", instruction, "register", "empty", "a loaded register")
        assert self._value is not None
        return self._value

    def poke(self, value: int, instruction: str) -> None:
        """Set the value, wrapped to 32 bits.

        Raises:
            RuleViolationError: The register belongs to a loop.
        """
        if self.frozen:
            violation("NKI-REGISTER-FROZEN", instruction, "dst", "a loop register", "another one")
        self._value = (value + 2**31) % 2**32 - 2**31

    def _refuse(self, use: str) -> NoReturn:
        raise TypeError(
            f"VirtualRegister: {use} needs a value at build time. Use nl.fori_loop or "
            "nl.while_loop, or pass the register as scalar_offset. [NKI-REGISTER-VALUE]"
        )

    def __int__(self) -> int:
        self._refuse("int()")

    def __index__(self) -> int:  # noqa: PLE0305
        self._refuse("an index or range()")

    def __bool__(self) -> bool:  # noqa: PLE0304
        self._refuse("if or while")

    def __float__(self) -> float:
        self._refuse("float()")
