# SPDX-License-Identifier: Apache-2.0
"""What a function computes, as a digest that can be had without tracing it.

Tracing a large model takes seconds for each program, which is most of a start on a warm cache.
A function that consists of our own code and of plain values is therefore described by the
source files of the packages it comes from and by those values.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

_OURS = "trnport"
_PLAIN = (int, bool, float, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size)
_MODULE_STATE = frozenset({"_parameters", "_buffers", "_modules", "training"})


class ForeignCodeError(Exception):
    """A function reaches code that is not ours, whose source says nothing about its helpers."""


def identity(function: Callable[..., Any]) -> str | None:
    """A digest, equal for two functions only if they compute the same; None if it takes a trace.

    Args:
        function: A module, a method of one, or a function. Classes and functions that somebody
            replaced at run time are not noticed.
    """
    description = _Description()
    try:
        description.add(function)
    except ForeignCodeError:
        return None
    parts = [*description.lines, *(f"{name} {_sources(name)}" for name in description.packages)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class _Description:
    """Everything that can be reached from a function, tensors by their form."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._packages: set[str] = {f"{_OURS}.core", __name__.rpartition(".")[0]}
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # bound methods come and go, and ids with them

    @property
    def packages(self) -> list[str]:
        """Packages of ours that were reached."""
        return sorted(self._packages)

    def add(self, value: Any) -> None:
        """Describe a value and what it holds."""
        if isinstance(value, _PLAIN):
            self.lines.append(f"{type(value).__name__} {value!r}")
            return
        if id(value) in self._seen:
            self.lines.append(f"again {self._seen[id(value)]}")
            return
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if isinstance(value, Tensor):
            self.lines.append(f"{value.dtype} {tuple(value.shape)} {value.device.type}")
        elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            self._add_code(value)
        elif isinstance(value, types.MethodType):
            self._add_code(value.__func__)
            self.add(value.__self__)
        else:
            self._add_object(value)

    def _add_code(self, value: Any) -> None:
        self._name(value.__module__, value.__qualname__)
        for cell in getattr(value, "__closure__", None) or ():
            self.add(cell.cell_contents)
        for default in getattr(value, "__defaults__", None) or ():
            self.add(default)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, functools.partial):
            self._add_items({"f": value.func, "a": value.args, "k": value.keywords})
        elif isinstance(value, Mapping):
            self._add_items(value)
        elif isinstance(value, list | tuple):
            self._add_items(dict(enumerate(value)))
        elif isinstance(value, set | frozenset):
            self._add_items(dict(enumerate(sorted(value, key=repr))))
        elif isinstance(value, enum.Enum):
            self._name(type(value).__module__, str(value))
        else:
            self._name(type(value).__module__, type(value).__qualname__)
            self._add_items(dict(_attributes(value)))

    def _add_items(self, items: Mapping[Any, Any]) -> None:
        self.lines.append(f"{len(items)}")
        for key, item in items.items():
            self.lines.append(f"{key!r}:")
            self.add(item)

    def _name(self, module: str | None, name: str) -> None:
        parts = (module or "").split(".")
        if parts[0] == _OURS:
            # Adapters and models are independent of each other, the core is one whole.
            self._packages.add(".".join(parts[: 2 if parts[1:2] == ["core"] else 3]))
        elif parts[0] != "torch":  # torch's version is a part of every key
            raise ForeignCodeError(f"{module}.{name}")
        self.lines.append(f"{module}.{name}")


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if attrs.has(type(value)):
        yield from ((f.name, getattr(value, f.name)) for f in attrs.fields(type(value)))
        return
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    if any(hasattr(value, name) for name in slots) or not hasattr(value, "__dict__"):
        raise ForeignCodeError(f"{type(value)} has slots")
    items = vars(value)
    if isinstance(value, nn.Module):
        if any(items[name] for name in items if name.endswith("_hooks")):
            raise ForeignCodeError("a module has hooks")
        empty = nn.Module().__dict__
        items = {k: v for k, v in items.items() if k not in empty or k in _MODULE_STATE}
    yield from items.items()


@functools.cache
def _sources(package: str) -> str:
    """Digest of a package's source files."""
    module = sys.modules[package]
    root = Path(inspect.getfile(module))
    files = sorted(root.parent.rglob("*.py")) if root.name == "__init__.py" else [root]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(root.parent)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
