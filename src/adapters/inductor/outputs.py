# SPDX-License-Identifier: Apache-2.0
"""What a function returns, apart from the tensors in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
from torch import Tensor

_LITERALS = (int, bool, float, str, type(None))


@attrs.frozen
class Outputs:
    """The form of a return value; it can be stored with a program.

    Attributes:
        kind: The type of a tuple, named tuple, list or dictionary; None for a tensor;
            ``object`` for any other value.
        parts: Forms of the items.
        value: The value, if it is neither a container nor a tensor; the keys of a dictionary.
    """

    kind: type | None
    parts: tuple[Outputs, ...] = ()
    value: Any = None

    @classmethod
    def of(cls, value: Any, tensors: list[Tensor]) -> Outputs:
        """The form of ``value``, whose tensors are appended to ``tensors``.

        Raises:
            TypeError: It holds something that no program can return.
        """
        if isinstance(value, Tensor):
            tensors.append(value)
            return cls(None)
        if isinstance(value, dict):
            parts = tuple(cls.of(item, tensors) for item in value.values())
            return cls(dict, parts, tuple(value))
        if isinstance(value, tuple | list):
            return cls(type(value), tuple(cls.of(item, tensors) for item in value))
        if not isinstance(value, _LITERALS):
            raise TypeError(f"a program cannot return a {type(value).__name__}; return tensors")
        return cls(object, value=value)

    def fill(self, supply: Iterator[Tensor]) -> Any:
        """A value of this form with other tensors."""
        if self.kind is None:
            return next(supply)
        if self.kind is object:
            return self.value
        items = [part.fill(supply) for part in self.parts]
        if self.kind is dict:
            return dict(zip(self.value, items, strict=True))
        return self.kind(*items) if hasattr(self.kind, "_fields") else self.kind(items)
