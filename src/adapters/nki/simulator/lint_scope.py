# SPDX-License-Identifier: Apache-2.0
"""What a module's source defines, as far as the lint needs to know."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef

_MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_MUTABLE_CALLS = {"list", "dict", "set", "defaultdict", "deque", "Counter"}


def dotted(node: ast.AST) -> str:
    """The dotted name of an expression; ``?`` stands for anything but names and attributes."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def is_jit(node: ast.AST) -> bool:
    """Whether a decorator or an expression is ``jit``, ``nki.jit`` or a call of it."""
    if isinstance(node, ast.Call):
        node = node.func
    return dotted(node) in {"jit", "nki.jit"}


@dataclass
class Scope:
    """Top-level names of a source.

    Args:
        functions: Functions by name.
        classes: Classes by name, also those inside functions.
        jitted: Names of functions under ``nki.jit``.
        entries: Names of functions that are called as kernels.
        mutable: Names bound to a list, dict or set at module level.
    """

    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    jitted: set[str] = field(default_factory=set)
    entries: set[str] = field(default_factory=set)
    mutable: set[str] = field(default_factory=set)
    _used: set[str] | None = None

    @classmethod
    def of(cls, tree: ast.Module) -> Scope:
        """The scope of a parsed module."""
        scope = cls()
        for node in tree.body:
            if isinstance(node, Function):
                scope.functions[node.name] = node
                if any(is_jit(decorator) for decorator in node.decorator_list):
                    scope.jitted.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and _is_mutable(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                scope.mutable |= {dotted(target) for target in targets} - {"?"}
        scope.entries = set(scope.jitted)
        classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        scope.classes = {node.name: node for node in classes}
        return scope

    def used_names(self) -> set[str]:
        """Every name that kernel code mentions, annotations included."""
        if self._used is None:
            self._used = {
                node.id
                for function in kernel_functions(self)
                for node in ast.walk(function)
                if isinstance(node, ast.Name)
            } | {
                node.name
                for function in kernel_functions(self)
                for node in ast.walk(function)
                if isinstance(node, ast.ClassDef)
            }
        return self._used


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return dotted(value.func).split(".")[-1] in _MUTABLE_CALLS
    return isinstance(value, _MUTABLE)


def kernel_functions(scope: Scope) -> list[Function]:
    """The functions that run inside kernels.

    Those are the decorated ones and what they call or pass by name; all of them when none is
    decorated.
    """
    if not scope.jitted:
        return list(scope.functions.values())
    reached: dict[str, Function] = {}
    todo = sorted(scope.jitted)
    while todo:
        name = todo.pop()
        if name in reached:
            continue
        reached[name] = scope.functions[name]
        used = {node.id for node in ast.walk(reached[name]) if isinstance(node, ast.Name)}
        todo += sorted(used & scope.functions.keys())
    return list(reached.values())
