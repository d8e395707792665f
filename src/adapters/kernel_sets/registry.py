# SPDX-License-Identifier: Apache-2.0
"""Find sets of kernels, and compose them as ``neuron_config`` spells it.

A set is a whole Kernels adapter, or a dictionary of some operators. A package brings one by an
entry point of the group "trnport.kernels"; a program registers one with a call.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trnport.core.errors import ConfigError, TrnportError
from trnport.core.kernels import operator_names, with_operator
from trnport.core.ports.kernels import Kernels

GROUP = "trnport.kernels"
"""Entry points of this group are sets of kernels."""

Operators = Mapping[str, Callable[..., Any]]
"""Some operators by name, each with the parameters of the port's method, without ``self``."""

Factory = Callable[[], Kernels | Operators]
"""Makes a set. A class that implements Kernels is one."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class KernelSets:
    """All sets of kernels.

    Args:
        builtin: Name to factory of what comes with trnport.
    """

    def __init__(self, builtin: Mapping[str, Factory]) -> None:
        self._builtin = dict(builtin)
        self._registered: dict[str, Factory | Operators] = {}

    def register(self, name: str, made: Factory | Operators) -> None:
        """Add a set for this process; the same name again replaces it.

        A server's workers are processes of their own: give them an entry point instead.

        Args:
            name: Letters, digits, "_", "-" and ".".
            made: A factory, or operators by name.

        Raises:
            ConfigError: The name cannot be used, or belongs to trnport.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name of kernels; use letters, digits, _, - and .")
        if name in self._builtin:
            raise ConfigError(f"kernels named {name!r} come with trnport; choose another name")
        self._registered[name] = made

    def unregister(self, name: str) -> None:
        """Forget a set that :meth:`register` added; others are left alone."""
        self._registered.pop(name, None)

    def origins(self) -> dict[str, str]:
        """Name of every set to where it comes from, in order of precedence."""
        found = dict.fromkeys(self._builtin, "trnport")
        found |= dict.fromkeys(self._registered, "registered")
        for point in _entry_points():
            owner = point.dist.name if point.dist else "unknown package"
            found.setdefault(point.name, f"package {owner}")
        return found

    def check(self, spelling: str) -> tuple[str, ...]:
        """Look up every name of a spelling; loads nothing.

        Returns:
            The names of its sets.

        Raises:
            ConfigError: A name does not exist; the message lists those that do.
        """
        parts = _parts(spelling)
        for operator, name in parts:
            self._find(spelling, name)
            if operator is not None and operator not in operator_names():
                near = difflib.get_close_matches(operator, operator_names(), n=1, cutoff=0.0)[0]
                raise ConfigError(
                    f"kernels={spelling!r}: no operator is called {operator!r}; the nearest is "
                    f"{near!r} of {', '.join(operator_names())}"
                )
        return tuple(name for _, name in parts)

    def build(self, spelling: str, overrides: Mapping[str, Factory] | None = None) -> Kernels:
        """The set that a spelling describes.

        "torch_cpu" is that set, "torch_cpu+decode_attention:mine" takes one operator of "mine",
        and "torch_cpu+mine" all that "mine" has.

        Args:
            spelling: As in ``neuron_config``.
            overrides: Factories that replace those of the same name.

        Raises:
            ConfigError: A name does not exist, or a set cannot be made or lacks an operator.
        """
        self.check(spelling)
        given = overrides or {}
        (_, base), *replaced = _parts(spelling)
        kernels = self._make(spelling, base, given)
        if not isinstance(kernels, Kernels):
            have = ", ".join(kernels)
            raise ConfigError(
                f"kernels={spelling!r}: {base!r} has only {have}; name a whole set before it, such "
                f"as 'torch_cpu+{spelling}'"
            )
        for operator, name in replaced:
            part = self._make(spelling, name, given)
            wanted = tuple(_operators(part)) if operator is None else (operator,)
            chosen = {each: _operator(spelling, name, part, each) for each in wanted}
            label = f"{kernels.name}+{operator}:{name}" if operator else f"{kernels.name}+{name}"
            kernels = with_operator(kernels, **chosen)
            kernels.name = label
        return kernels

    def operators(self, name: str) -> tuple[str, ...]:
        """Names of the operators that a set has.

        Raises:
            ConfigError: There is no such set, or it cannot be made.
        """
        return tuple(_operators(self._make(name, name, {})))

    def providers(self, spelling: str) -> dict[str, str]:
        """Operator to the set that a spelling takes it from, the last one that has it.

        Raises:
            ConfigError: As in :meth:`build`.
        """
        self.build(spelling)
        found: dict[str, str] = {}
        for operator, name in _parts(spelling):
            wanted = self.operators(name) if operator is None else (operator,)
            found |= dict.fromkeys(wanted, name)
        return found

    def _find(self, spelling: str, name: str) -> Any:
        if name in self._builtin:
            return self._builtin[name]
        if name in self._registered:
            return self._registered[name]
        for point in _entry_points():
            if point.name == name:
                return point
        raise ConfigError(
            f"kernels={spelling!r}: {name!r} is not available; choose one of "
            f"{sorted(self.origins())}"
        )

    def _make(
        self, spelling: str, name: str, overrides: Mapping[str, Factory]
    ) -> Kernels | Operators:
        found = overrides.get(name) or self._find(spelling, name)
        try:
            if isinstance(found, importlib.metadata.EntryPoint):
                found = found.load()
            made = found() if callable(found) else found
        except TrnportError:
            raise
        except Exception as error:  # somebody else's package
            raise ConfigError(
                f"kernels={spelling!r}: {name!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        if isinstance(made, Kernels):
            return made
        if isinstance(made, Mapping) and made and set(made) <= set(operator_names()):
            return made
        raise ConfigError(
            f"kernels={spelling!r}: {name!r} is {made!r:.80}, neither a Kernels adapter nor a "
            f"dictionary of operators ({', '.join(operator_names())})"
        )


def _parts(spelling: str) -> list[tuple[str | None, str]]:
    """(operator or None, set) for each part of a spelling."""
    parts: list[tuple[str | None, str]] = []
    for part in spelling.split("+"):
        operator, colon, name = part.rpartition(":")
        if not _NAME.fullmatch(name) or (colon and not parts) or (colon and not operator):
            raise ConfigError(
                f"kernels={spelling!r} is not spelled as 'set', 'set+other' or 'set+operator:other'"
            )
        parts.append((operator if colon else None, name))
    return parts


def _operators(part: Kernels | Operators) -> Iterator[str]:
    return iter(operator_names() if isinstance(part, Kernels) else part)


def _operator(spelling: str, name: str, part: Kernels | Operators, operator: str) -> Any:
    if isinstance(part, Kernels):
        return getattr(part, operator)
    if operator not in part:
        raise ConfigError(
            f"kernels={spelling!r}: {name!r} has no {operator}, only {', '.join(part)}"
        )
    return part[operator]


def _entry_points() -> Iterator[importlib.metadata.EntryPoint]:
    return iter(importlib.metadata.entry_points(group=GROUP))
