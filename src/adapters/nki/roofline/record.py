# SPDX-License-Identifier: Apache-2.0
"""Run a model without computing it, and note which operators it calls with which shapes."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trnport.core.kernel_calls import KernelCall
from trnport.core.kernels import operator_names
from trnport.core.ports.compiler import Compiler, Program
from trnport.core.ports.kernels import Kernels


class ShapeNotes:
    """Calls by program.

    Attributes:
        program: The one that runs.
        calls: Program to calls, each with how often it was made; in order of the first.
    """

    def __init__(self) -> None:
        self.program = ""
        self.calls: dict[str, Counter[KernelCall]] = {}

    def note(self, operator: str, values: Mapping[str, Any]) -> None:
        """Count one call of the running program."""
        calls = self.calls.setdefault(self.program, Counter())
        calls[KernelCall.of(operator, values)] += 1


class ProgramNotes(Compiler):
    """Compiles nothing, and says which program runs."""

    def __init__(self, notes: ShapeNotes) -> None:
        self._notes = notes

    def compile(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Program:
        """The function itself, under a name."""
        del args, kwargs

        @functools.wraps(function)
        def run(*values: Any, **named: Any) -> Any:
            before, self._notes.program = self._notes.program, name
            try:
                return function(*values, **named)
            finally:
                self._notes.program = before

        return run

    def cache_key(
        self, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> str:
        """The name: nothing is kept."""
        del args, kwargs
        return name

    def seal(self) -> None:
        """Nothing to close."""


def _results(operator: str, values: dict[str, Any]) -> Any:
    """Empty tensors of the shapes that the port promises."""
    first: Tensor = next(iter(values.values()))
    if operator == "rope":
        return torch.empty_like(values["q"]), torch.empty_like(values["k"])
    if operator == "kv_write":
        return None
    if operator in {"qkv_proj", "o_proj", "linear"}:
        return first.new_empty(first.shape[0], values["weight"].shape[1])
    if operator == "top_k":
        shape = (first.shape[0], values["k"])
        return first.new_empty(shape), first.new_empty(shape, dtype=torch.int64)
    return torch.empty_like(first)


def shape_kernels(notes: ShapeNotes) -> Kernels:
    """Operators that note their call and return empty tensors, on the meta device too."""

    def operator(name: str) -> Any:
        signature = inspect.signature(getattr(Kernels, name))

        def noted(self: Kernels, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            values = {key: x for key, x in bound.arguments.items() if key != "self"}
            notes.note(name, values)
            return _results(name, values)

        return noted

    members: dict[str, Any] = {name: operator(name) for name in operator_names()}
    made: Kernels = type("ShapeKernels", (Kernels,), {**members, "name": "shapes"})()
    return made
