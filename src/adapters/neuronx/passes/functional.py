# SPDX-License-Identifier: Apache-2.0
"""The functional operator that does what a changing node does."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional as F

from trnport.adapters.neuronx.passes.emitter import Emitter, dtype_of, shape_of
from trnport.adapters.neuronx.passes.indexing import assigned
from trnport.adapters.neuronx.passes.steps import Slice
from trnport.adapters.neuronx.passes.writes import AUGMENTED, Kind, Write, bind, overload_of

RANDOM = frozenset({
    "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_",
    "uniform_",
})  # fmt: skip

Read = Callable[[Any], Any]
"""From an argument of the old graph to that of the new one, nodes inside containers included."""


def functional_operator(
    op: Callable[..., Any], written: tuple[str, ...], arguments: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Call an operator that changes arguments, on copies of them.

    It stands in a rewritten graph for an operator of torch.library. A backend that knows the
    operator gives it the buffers themselves and says which output is which argument.

    Args:
        op: The operator.
        written: Names of the arguments that it changes.
        arguments: All of its arguments by name.

    Returns:
        The operator's results followed by the changed copies, as one tuple.
    """
    copies = {name: torch.clone(arguments[name]) for name in written}
    result = op(**{**arguments, **copies})
    results = () if result is None else result if isinstance(result, tuple) else (result,)
    return (*results, *copies.values())


def new_values(emit: Emitter, write: Write, read: Read) -> tuple[Node | None, list[Node]]:
    """Emit what a changing node computes.

    Returns:
        The node of its own results where those are no changed argument, and the new value of
        each target, in order.

    Raises:
        NotImplementedError: There is no functional operator for it.
    """
    node = write.node
    if write.kind is Kind.OPERATOR:
        return _operator(emit, write, read)
    if write.kind is Kind.KERNEL:
        new = emit.copy(node, read)
        return new, [emit.call(operator.getitem, new, output) for output in write.names]
    if write.kind is Kind.OUT:
        return None, _out(emit, write, read)
    (target,) = write.targets
    whole = read(target)
    args, kwargs = read(node.args), read(node.kwargs)
    if write.kind is Kind.SETITEM:
        return None, [assigned(emit, whole, args[1], args[2])]
    if write.kind is Kind.AUGMENTED:
        new = emit.call(AUGMENTED[node.target], *args)  # type: ignore[index]
    elif write.kind is Kind.FLAG:
        new = emit.call(node.target, *args, **{**kwargs, "inplace": False})  # type: ignore[arg-type]
    else:
        new = _underscored(emit, write, whole, args, kwargs)
    return None, [emit.cast(new, dtype_of(target))]


def _underscored(
    emit: Emitter, write: Write, whole: Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Node:
    node = write.node
    name = node.target if write.kind is Kind.METHOD else node.target.__name__  # type: ignore[union-attr]
    special = _special(emit, str(name), whole, args, kwargs)
    if special is not None:
        return special
    plain = str(name)[:-1]
    if name not in RANDOM:
        if write.kind is Kind.METHOD and hasattr(torch.Tensor, plain):
            return emit.method(plain, *args, **kwargs)
        for module in (torch, F):
            if write.kind is Kind.FUNCTION and hasattr(module, plain):
                return emit.call(getattr(module, plain), *args, **kwargs)
    raise _unsupported(write, f"{name} has no functional form {plain}")


def _special(
    emit: Emitter, name: str, whole: Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Node | None:
    """Those whose functional form has another name."""
    rest = [*args[1:], *(v for k, v in kwargs.items() if k != "non_blocking")]
    if name == "zero_":
        return emit.call(torch.zeros_like, whole)
    if name == "fill_":
        return emit.filled_like(whole, rest[0])
    if name == "copy_":
        new = emit.filled_like(whole, rest[0])
        shape = shape_of(whole)
        # A scatter over everything says which buffer the new content replaces.
        return Slice(0, 0, shape[0]).up(emit, whole, new) if shape else new
    return None


def _out(emit: Emitter, write: Write, read: Read) -> list[Node]:
    node = write.node
    kwargs = {name: read(value) for name, value in node.kwargs.items() if name != "out"}
    new = emit.call(node.target, *read(node.args), **kwargs)  # type: ignore[arg-type]
    is_one = isinstance(node.kwargs["out"], Node)
    count = len(write.targets)
    parts = [new] if is_one else [emit.call(operator.getitem, new, i) for i in range(count)]
    for target, part in zip(write.targets, parts, strict=True):
        if shape_of(target) != shape_of(part):
            raise _unsupported(write, f"out= has shape {shape_of(target)}, not {shape_of(part)}")
    return [
        emit.cast(part, dtype_of(target)) for target, part in zip(write.targets, parts, strict=True)
    ]


def _operator(emit: Emitter, write: Write, read: Read) -> tuple[Node | None, list[Node]]:
    node = write.node
    op = overload_of(node.target)
    assert op is not None
    schema = op._schema
    namespace, _, name = schema.name.partition("::")
    if namespace == "aten":
        return None, [_aten(emit, write, schema, name, read)]
    arguments = {key: read(value) for key, value in bind(schema, node).items()}
    new = emit.call(functional_operator, op, write.names, arguments)
    new.meta |= {key: value for key, value in node.meta.items() if key not in new.meta}
    count = len(schema.returns)
    items = [emit.call(operator.getitem, new, count + i) for i in range(len(write.targets))]
    if count == 0:
        return None, items
    results = emit.call(operator.getitem, new, 0) if count == 1 else new
    return results, items


def _aten(emit: Emitter, write: Write, schema: torch.FunctionSchema, name: str, read: Read) -> Node:
    """One of torch's own operators, called by its overload."""
    arguments = {key: read(value) for key, value in bind(schema, write.node).items()}
    (first, whole), *rest = arguments.items()
    if name in RANDOM or len(write.targets) != 1 or not name.endswith("_"):
        raise _unsupported(write, f"{schema.name} has no functional form that is known")
    args = (whole, *(value for _, value in rest))
    new = _special(emit, name, whole, args[:2], {})
    if new is None:
        packet = getattr(torch.ops.aten, name[:-1], None)
        overload = getattr(packet, schema.overload_name or "default", None)
        if overload is None:
            raise _unsupported(write, f"{schema.name} has no functional form {name[:-1]}")
        new = emit.node("call_function", overload, (), {first: whole, **dict(rest)})
    return emit.cast(new, dtype_of(write.targets[0]))


def _unsupported(write: Write, why: str) -> NotImplementedError:
    return NotImplementedError(f"{write.node.format_node()}: {why}")
