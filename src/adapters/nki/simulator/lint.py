# SPDX-License-Identifier: Apache-2.0
"""A lint of the Python subset that kernels may use on hardware.

The simulator runs any Python; the compiler does not. The rules are those of the language guide,
the 0.2 to 0.3 migration page and the dynamic loop page. A construct that none of them lists as
supported is reported as ``NKI-LINT-CONSTRUCT``.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trnport.adapters.nki.simulator.lint_nodes import node_findings
from trnport.adapters.nki.simulator.lint_scope import Scope, dotted, is_jit, kernel_functions

__all__ = ["Finding", "lint"]


@dataclass(frozen=True, order=True)
class Finding:
    """One violation of the subset.

    Args:
        line: Line in the source text, or in its file when a function was linted; 1-based.
        rule: Rule id, ``NKI-LINT-...``.
        message: What was found and what to write instead.
    """

    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.line}: {self.rule}: {self.message}"


def lint(target: Callable[..., Any] | str) -> list[Finding]:
    """Check a kernel, or every kernel of a module's source, against the subset.

    Args:
        target: Source text of a module, or a function (or an object that wraps one). In a source
            with decorated kernels, the kernels and the helpers they call by name are checked;
            in a source without, and for a function, all functions are.

    Returns:
        The findings in the order of their lines; empty when the code is clean.

    Raises:
        ValueError: The source does not parse; the message names the line.
        OSError: The source of the function cannot be found.
    """
    if isinstance(target, str):
        return sorted(set(_module_findings(_parse(target))))
    function = inspect.unwrap(target)
    lines, first = inspect.getsourcelines(function)
    tree = _parse(textwrap.dedent("".join(lines)))
    found = {
        Finding(each.line + first - 1, each.rule, each.message)
        for each in _module_findings(tree, whole=False)
    }
    return sorted(found | set(_outside_state(function, tree, first)))


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"the source does not parse: line {error.lineno}: {error.msg}") from error


def _module_findings(tree: ast.Module, whole: bool = True) -> Iterator[Finding]:
    scope = Scope.of(tree)
    if not whole:  # a function given on its own is a kernel
        scope.entries = set(scope.functions)
    for function in kernel_functions(scope):
        for line, rule, message in node_findings(function, scope):
            yield Finding(line, rule, message)
    yield from _imports(tree)
    yield from _classes(scope)
    yield from _host_calls(tree, scope)


def _imports(tree: ast.Module) -> Iterator[Finding]:
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name.split(".")[0] == "neuronxcc" for name in names):
            yield Finding(
                node.lineno, "NKI-LINT-REMOVED", "neuronxcc.nki is gone since 0.4; import nki"
            )


def _classes(scope: Scope) -> Iterator[Finding]:
    """Classes that kernel code names must derive from NKIObject alone, or be an Enum."""
    for node in scope.classes.values():
        bases = [dotted(base).split(".")[-1] for base in node.bases]
        known = len(bases) == 1 and (bases[0] in {"NKIObject", "Enum"} or bases[0] in scope.classes)
        if known or node.name not in scope.used_names():
            continue
        message = f"class {node.name} derives from {bases or 'nothing'}; only nl.NKIObject (or a "
        yield Finding(node.lineno, "NKI-LINT-CLASS-BASE", message + "plain Enum) is allowed")


def _host_calls(tree: ast.Module, scope: Scope) -> Iterator[Finding]:
    """Lists passed to a decorated kernel anywhere in the source."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and dotted(node.func) in scope.jitted):
            continue
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if any(isinstance(value, ast.List | ast.ListComp) for value in given):
            message = f"a list passed to kernel {dotted(node.func)}; kernels take tuples"
            yield Finding(node.lineno, "NKI-LINT-LIST-ARGUMENT", message)


def _outside_state(function: Any, tree: ast.Module, first: int) -> Iterator[Finding]:
    """Mutable objects that a live function reaches through its globals or closure."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    outside = {name: function.__globals__.get(name) for name in code.co_names}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        outside[name] = cell.cell_contents
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
            continue
        value = outside.get(node.id)
        line = node.lineno + first - 1
        if isinstance(value, list | dict | set):
            message = f"{node.id} is a mutable {type(value).__name__} from outside; kernels are "
            message += "compiled once per arguments, so pass it in or make it a tuple"
            yield Finding(line, "NKI-LINT-MUTABLE-GLOBAL", message)
        elif type(value).__name__ == "Kernel" and not is_jit(node):
            message = f"{node.id} is a decorated kernel; call the plain function from a kernel"
            yield Finding(line, "NKI-LINT-NESTED-JIT", message)
