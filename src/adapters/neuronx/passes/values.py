# SPDX-License-Identifier: Apache-2.0
"""What a node's tensors look like: shape, strides, dtype and which memory they share.

Values are torch's fake tensors, so nothing is computed and no memory is taken. All of them are
on one device, since memory sharing and shapes do not depend on which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

KEY = "val"
"""Where a node's value is in its meta."""

_DEVICE = torch.device("cpu")


def value_of(node: Node) -> Any:
    """The value of a node that has one: a fake tensor, a container of them or a number."""
    return node.meta[KEY]


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in a value or an argument whose nodes were replaced by values."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def storage_of(tensor: Tensor) -> int:
    """Identity of the memory, equal for two tensors that are views of one."""
    return tensor.untyped_storage()._cdata


def same_place(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same elements in the same order."""
    return storage_of(a) == storage_of(b) and _layout(a) == _layout(b)


def _layout(x: Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.stride(), x.storage_offset(), x.dtype


class _Observer(TorchDispatchMode):
    """Notes which memory the operators below a call write, by their schemas."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,  # the interface
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
        named |= kwargs or {}
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.written |= {storage_of(x) for x in tensors_in(named.get(argument.name))}
        return func(*args, **(kwargs or {}))


class Evaluator:
    """Finds values of nodes one at a time; values of their arguments come first.

    Args:
        gm: Owner of the attributes that ``get_attr`` nodes name.

    Attributes:
        written: Memory that the last node wrote, whatever the node looks like.
    """

    def __init__(self, gm: GraphModule) -> None:
        self._gm = gm
        self.written: set[int] = set()
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    def place(self, node: Node, example: Any) -> None:
        """Give an input its value.

        Args:
            node: The placeholder.
            example: A tensor of the right shape, or the value itself when it is no tensor.
        """
        node.meta[KEY] = self._like(example) if isinstance(example, Tensor) else example

    def evaluate(self, node: Node) -> Any:
        """Find and keep a node's value.

        Raises:
            NotImplementedError: The node calls a module, which tracing should have opened.
        """
        args, kwargs = self.arguments(node)
        observer = _Observer()
        with torch.inference_mode(False), torch.no_grad(), self._mode, observer:
            node.meta[KEY] = self._call(node, args, kwargs)
        self.written = observer.written
        return node.meta[KEY]

    @staticmethod
    def arguments(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A node's arguments with values in place of nodes, on the one device."""
        return map_aggregate((node.args, node.kwargs), _as_value)

    def _call(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.op == "call_function":
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "get_attr":
            found: Any = self._gm
            for part in str(node.target).split("."):
                found = getattr(found, part)
            return self._like(found) if isinstance(found, Tensor) else found
        raise NotImplementedError(
            f"{node.format_node()}: {node.op} nodes are not supported; trace into the module"
        )

    def _like(self, example: Tensor) -> Tensor:
        # Made anew: the example may be fake in another mode, or an inference tensor, which
        # counts no versions.
        sizes, strides, offset = example.shape, example.stride(), example.storage_offset()
        with torch.inference_mode(False), self._mode:
            if not offset:
                return torch.empty_strided(sizes, strides, dtype=example.dtype, device=_DEVICE)
            extent = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
            memory = torch.empty(extent, dtype=example.dtype, device=_DEVICE)
            return memory.as_strided(sizes, strides, offset)


def example_values(gm: GraphModule, example_inputs: Sequence[Any] | None = None) -> list[Any]:
    """One example per placeholder: those given, or what Dynamo left on the placeholders.

    Raises:
        ValueError: There are neither, or another number of them than placeholders.
    """
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    if example_inputs is None:
        missing = [n.name for n in nodes if KEY not in n.meta and "example_value" not in n.meta]
        if missing:
            raise ValueError(f"the shapes of {missing} are unknown; give example_inputs")
        return [n.meta[KEY] if KEY in n.meta else n.meta["example_value"] for n in nodes]
    if len(example_inputs) != len(nodes):
        raise ValueError(f"example_inputs: the graph takes {len(nodes)}, got {len(example_inputs)}")
    return list(example_inputs)


def _as_value(argument: Any) -> Any:
    if isinstance(argument, Node):
        return value_of(argument)
    return _DEVICE if isinstance(argument, torch.device) else argument
