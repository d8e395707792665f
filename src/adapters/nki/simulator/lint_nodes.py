# SPDX-License-Identifier: Apache-2.0
"""The lint's rules about single syntax nodes of kernel code."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trnport.adapters.nki.simulator.lint_scope import Function, Scope, dotted, is_jit

#: line, rule, message
Raw = tuple[int, str, str]

_DIVISION = {"divide", "mod", "fmod"}
_REMOVED = {"arange", "mgrid", "par_dim", "tensor_copy_dynamic_src", "tensor_copy_dynamic_dst"}
_NAMESPACES = {"nl", "nisa", "nki.language", "nki.isa"}
_DYNAMIC = {"dynamic_range", "fori_loop", "while_loop"}

#: Constructs that no page lists as supported: node type, its name, what to write instead.
_CONSTRUCTS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lambda: ("lambda", "define a function"),
    ast.ListComp: ("a list comprehension", "use a for loop"),
    ast.SetComp: ("a set comprehension", "use a for loop and a list"),
    ast.DictComp: ("a dict comprehension", "use a for loop"),
    ast.GeneratorExp: ("a generator expression", "use a for loop"),
    ast.Try: ("try", "check before you act"),
    ast.TryStar: ("try", "check before you act"),
    ast.Raise: ("raise", "use assert"),
    ast.Yield: ("yield", "return a tuple"),
    ast.YieldFrom: ("yield from", "return a tuple"),
    ast.Await: ("await", "kernels are synchronous"),
    ast.AsyncFunctionDef: ("async def", "kernels are synchronous"),
    ast.AsyncFor: ("async for", "kernels are synchronous"),
    ast.AsyncWith: ("async with", "kernels are synchronous"),
    ast.Import: ("an import inside a kernel", "import at the top of the module"),
    ast.ImportFrom: ("an import inside a kernel", "import at the top of the module"),
    ast.NamedExpr: (":=", "assign on a line of its own"),
    ast.Set: ("a set", "use a tuple"),
    ast.Delete: ("del", "use list.pop or dict.pop"),
    ast.Match: ("match", "use if and =="),
}


def node_findings(function: Function, scope: Scope) -> Iterator[Raw]:
    """The findings inside one function that runs in kernels, nested functions included."""
    local = _bound_names(function)
    for node in ast.walk(function):
        yield from _constructs(node)
        yield from _comparisons(node)
        yield from _values(node)
        yield from _attributes(node)
        if isinstance(node, Function):
            yield from _signature(node, function, scope)
        elif isinstance(node, ast.Call):
            yield from _call(node)
            yield from _nested_call(node, scope)
        elif isinstance(node, ast.With):
            yield from _with(node)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            message = f"{', '.join(node.names)} is state outside the function; kernels are pure"
            yield node.lineno, "NKI-LINT-MUTABLE-GLOBAL", message
        elif isinstance(node, ast.Name) and node.id in scope.mutable - local:
            message = f"{node.id} is a mutable object of the module; pass it in or use a tuple"
            yield node.lineno, "NKI-LINT-MUTABLE-GLOBAL", message
    if function.name in scope.entries:
        yield from _returns(function)


def _bound_names(function: Function) -> set[str]:
    names = {argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)}
    stored = (ast.Store, ast.Del)
    return names | {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, stored)
    }


def _constructs(node: ast.AST) -> Iterator[Raw]:
    if type(node) in _CONSTRUCTS:
        what, instead = _CONSTRUCTS[type(node)]
        line = getattr(node, "lineno", 0)
        yield line, "NKI-LINT-CONSTRUCT", f"{what} is not in the documented subset; {instead}"


def _comparisons(node: ast.AST) -> Iterator[Raw]:
    if isinstance(node, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        yield node.lineno, "NKI-LINT-IDENTITY", "`is` and `is not` do not compile; use == and !="


def _values(node: ast.AST) -> Iterator[Raw]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _integer(node.operand)
        if number > 2**31:
            yield node.lineno, "NKI-LINT-INT-RANGE", f"-{number} does not fit 32 bits"
    elif isinstance(node, ast.Constant) and _integer(node) >= 2**32:
        yield node.lineno, "NKI-LINT-INT-RANGE", f"{node.value!r} does not fit 32 bits"
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            if isinstance(key, ast.Constant) and not isinstance(key.value, str):
                message = f"key {key.value!r}: keys of a dict are strings"
                yield node.lineno, "NKI-LINT-DICT-KEY", message


def _integer(node: ast.AST) -> int:
    """The value of an integer literal; 0 for anything else."""
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else 0


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _attributes(node: ast.AST) -> Iterator[Raw]:
    if not isinstance(node, ast.Attribute) or dotted(node.value) not in _NAMESPACES:
        return
    if node.attr in _DIVISION:
        message = f"nl.{node.attr} simulates but never compiles; multiply by a reciprocal"
        yield node.lineno, "NKI-LINT-DIVIDE", message
    elif node.attr in _REMOVED:
        message = f"{node.attr} was removed; use slices, views and .ap()"
        yield node.lineno, "NKI-LINT-REMOVED", message


def _signature(node: Function, outer: Function, scope: Scope) -> Iterator[Raw]:
    arguments = node.args
    if arguments.kwonlyargs and arguments.vararg is None:
        message = "the * separator does not compile; put arguments with defaults last"
        yield node.lineno, "NKI-LINT-KEYWORD-ONLY", message
    if arguments.vararg or arguments.kwarg:
        message = "*args and **kwargs are not in the documented subset; name the arguments"
        yield node.lineno, "NKI-LINT-CONSTRUCT", message
    if node is not outer and any(is_jit(decorator) for decorator in node.decorator_list):
        message = f"{node.name} is decorated inside a kernel; leave the decorator out"
        yield node.lineno, "NKI-LINT-NESTED-JIT", message
    if node is outer and node.name in scope.entries:
        annotations = [argument.annotation for argument in arguments.args]
        listed = any(annotation is not None and _is_list(annotation) for annotation in annotations)
        if listed or any(isinstance(value, ast.List) for value in arguments.defaults):
            message = "a kernel argument is a list; take a tuple"
            yield node.lineno, "NKI-LINT-LIST-ARGUMENT", message


def _is_list(annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    return dotted(annotation).split(".")[-1] in {"list", "List"}


def _call(node: ast.Call) -> Iterator[Raw]:
    name = dotted(node.func)
    if name.rpartition(".")[0] not in _NAMESPACES:
        return
    for keyword in node.keywords:
        if keyword.arg == "mask":
            message = f"{name} takes no mask; slice the operands or select with a predicate"
            yield keyword.value.lineno, "NKI-LINT-MASK", message
        elif keyword.arg == "buffer" and _is_string(keyword.value):
            message = f"buffer={ast.unparse(keyword.value)}: pass nl.sbuf, nl.psum, ..."
            yield keyword.value.lineno, "NKI-LINT-STRING-BUFFER", message


def _nested_call(node: ast.Call, scope: Scope) -> Iterator[Raw]:
    name = dotted(node.func)
    if isinstance(node.func, ast.Subscript):
        name = dotted(node.func.value)
    if name in scope.jitted:
        message = f"{name} is decorated with nki.jit; call the plain function from a kernel"
        yield node.lineno, "NKI-LINT-NESTED-JIT", message


def _with(node: ast.With) -> Iterator[Raw]:
    for item in node.items:
        context = item.context_expr
        name = dotted(context.func) if isinstance(context, ast.Call) else dotted(context)
        if name.split(".")[-1] != "no_reorder":
            message = "with is not in the documented subset, but for nl.no_reorder()"
            yield node.lineno, "NKI-LINT-CONSTRUCT", message
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and dotted(inner.func).split(".")[-1] in _DYNAMIC:
                message = "a dynamic loop inside nl.no_reorder(); put no_reorder into its body"
                yield inner.lineno, "NKI-LINT-DYNAMIC-LOOP", message


def _returns(function: Function) -> Iterator[Raw]:
    for node in _own_nodes(function):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        if any(_is_no_tensor(value) for value in values):
            yield node.lineno, "NKI-LINT-RETURN", "a kernel returns tensors, nothing else"


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, Function):
            yield child
            yield from _own_nodes(child)


def _is_no_tensor(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return value.value is not None
    if isinstance(value, ast.Attribute):
        return value.attr in {"shape", "dtype", "strides", "ndim", "size", "buffer", "name"}
    return isinstance(value, ast.JoinedStr | ast.Dict | ast.Compare | ast.BoolOp)
