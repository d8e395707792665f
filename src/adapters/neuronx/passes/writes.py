# SPDX-License-Identifier: Apache-2.0
"""Which nodes change a tensor that they are given, and which one."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterator
from typing import Any

import attrs
import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch.fx import Node

from trnport.adapters.neuronx.passes.values import storage_of, value_of


class Kind(enum.Enum):
    """How a node changes a tensor."""

    SETITEM = "assignment to an index"
    METHOD = "method that ends in an underscore"
    FUNCTION = "function that ends in an underscore"
    AUGMENTED = "augmented assignment"
    FLAG = "inplace=True"
    OUT = "out="
    OPERATOR = "argument that an operator's schema marks as written"
    KERNEL = "kernel operand that is also an output"


@attrs.frozen(eq=False)
class Write:
    """The changes that one node makes.

    Attributes:
        node: The node.
        kind: How.
        targets: The nodes of the tensors that change, in order of the arguments.
        names: For an operator the targets' argument names; for a kernel its output numbers.
    """

    node: Node
    kind: Kind
    targets: tuple[Node, ...]
    names: tuple[Any, ...] = ()


ALIASES = "operand_output_aliases"
"""Key in a kernel node's meta or keyword arguments: operand number to output number."""

AUGMENTED = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod, operator.ipow: operator.pow, operator.iand: operator.and_,
    operator.ior: operator.or_, operator.ixor: operator.xor, operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift, operator.imatmul: operator.matmul,
}  # fmt: skip
"""Augmented assignments and what they compute."""

NO_CHANGE = frozenset({"requires_grad_", "detach_", "retain_grad_"})
"""Methods that touch only what training needs."""

RESHAPING = frozenset({
    "t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "resize_",
    "resize_as_", "set_", "as_strided_", "rename_", "resize_as_sparse_", "sparse_resize_",
})  # fmt: skip
"""Methods that change a tensor's shape or memory, which no functional operator replaces."""


def find_write(node: Node) -> Write | None:
    """What a node changes, or None. Values of all nodes are known.

    Raises:
        NotImplementedError: It changes a tensor's shape or memory in place.
    """
    if node.op == "call_method":
        return _method(node)
    return _function(node) if node.op == "call_function" else None


def schema_of(node: Node) -> torch.FunctionSchema | None:
    """Schema of the operator a node calls; None for anything else."""
    op = overload_of(node.target)
    return None if op is None else op._schema


def overload_of(target: Any) -> torch._ops.OpOverload | None:
    """The one operator that a target of torch.library or torch.ops is; None for anything else."""
    if isinstance(target, torch._ops.OpOverload):
        return target
    if isinstance(target, CustomOpDef):
        return target._opoverload
    if isinstance(target, torch._ops.OpOverloadPacket) and len(target.overloads()) == 1:
        return getattr(target, target.overloads()[0])
    return None


def bind(schema: torch.FunctionSchema, node: Node) -> dict[str, Any]:
    """Argument name to argument, with defaults for those not given."""
    bound: dict[str, Any] = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(node.args) and not argument.kwarg_only:
            bound[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value
    return bound


def _method(node: Node) -> Write | None:
    name, target = str(node.target), _argument(node, 0)
    if not name.endswith("_") or name.endswith("__") or name in NO_CHANGE:
        return None
    if not _holds_tensor(target):
        return None
    if name in RESHAPING:
        raise NotImplementedError(
            f"{node.format_node()}: {name} changes the tensor's shape or memory in place; "
            f"use {name.rstrip('_')} and its result"
        )
    return Write(node, Kind.METHOD, (target,))


def _function(node: Node) -> Write | None:
    aliases: Any = node.meta.get(ALIASES) or node.kwargs.get(ALIASES)
    if aliases:
        operands = tuple(_argument(node, operand) for operand in aliases)
        return Write(node, Kind.KERNEL, operands, tuple(aliases.values()))
    if node.target is operator.setitem:
        whole = _argument(node, 0)
        return Write(node, Kind.SETITEM, (whole,)) if _holds_tensor(whole) else None
    if node.target in AUGMENTED:
        return _augmented(node)
    schema = schema_of(node)
    if schema is not None:
        return _operator(node, schema)
    if node.kwargs.get("out") is not None:
        return Write(node, Kind.OUT, tuple(_nodes(node.kwargs["out"])))
    if node.kwargs.get("inplace"):
        return Write(node, Kind.FLAG, (_argument(node, 0),))
    return _underscored(node)


def _underscored(node: Node) -> Write | None:
    name = getattr(node.target, "__name__", "")
    module = getattr(node.target, "__module__", None) or "torch"
    if not name.endswith("_") or name.endswith("__") or not module.startswith("torch"):
        return None
    target = _argument(node, 0)
    if not _holds_tensor(target):
        return None
    if name in RESHAPING:
        raise NotImplementedError(
            f"{node.format_node()}: {name} changes the tensor's shape or memory in place"
        )
    return Write(node, Kind.FUNCTION, (target,))


def _argument(node: Node, position: int) -> Any:
    """An argument by position, also where a call names its first one."""
    return node.args[position] if len(node.args) > position else node.kwargs.get("input")


def _augmented(node: Node) -> Write | None:
    target = _argument(node, 0)
    if not _holds_tensor(target):
        return None
    # Where a type has no in-place form, Python falls back to the plain operator.
    if storage_of(value_of(node)) != storage_of(value_of(target)):
        return None
    return Write(node, Kind.AUGMENTED, (target,))


def _operator(node: Node, schema: torch.FunctionSchema) -> Write | None:
    bound = bind(schema, node)
    names = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    written = [(name, target) for name in names for target in _nodes(bound[name])]
    if not written:
        return None
    for name in names:
        if bound[name] is not None and not isinstance(bound[name], Node):
            raise NotImplementedError(
                f"{node.format_node()}: {name} is a list of written tensors, which is not supported"
            )
    return Write(node, Kind.OPERATOR, tuple(t for _, t in written), tuple(n for n, _ in written))


def _nodes(argument: Any) -> Iterator[Node]:
    if isinstance(argument, Node):
        yield argument
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _nodes(item)


def _holds_tensor(argument: Any) -> bool:
    return isinstance(argument, Node) and isinstance(value_of(argument), Tensor)
