# SPDX-License-Identifier: Apache-2.0
"""The tensors that a function reads besides its arguments: a module's weights and caches.

They are inputs of every compiled program, so all programs of a model share them, and a program
writes to the very cache that the model holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from trnport.core.errors import UnseenSignatureError


@attrs.frozen
class Place:
    """Where a tensor is found: ``holder[name]``, or ``holder[name][index]`` in a list."""

    holder: dict[str, Any]
    name: str
    index: int | None = None

    def read(self) -> Tensor:
        """The tensor that is there now."""
        found = self.holder[self.name]
        tensor: Tensor = found if self.index is None else found[self.index]
        return tensor

    def write(self, tensor: Tensor) -> None:
        """Put another one there, without touching a list that others may hold."""
        if self.index is None:
            self.holder[self.name] = tensor
        else:
            items = list(self.holder[self.name])
            items[self.index] = tensor
            self.holder[self.name] = items


def module_of(function: Callable[..., Any]) -> nn.Module | None:
    """The module that a function is, or is a method of."""
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


class State:
    """A module's parameters, buffers, and the lists of tensors among its attributes.

    Args:
        module: The module; None has no tensors.
    """

    def __init__(self, module: nn.Module | None) -> None:
        self._places = list(_places(module)) if module is not None else []
        self._held = [place.read() for place in self._places]
        self._numbers = _numbers(self._held)
        self._inputs = _inputs(self._held)

    def tensors(self) -> list[Tensor]:
        """The inputs of a program, as they are bound now.

        Raises:
            UnseenSignatureError: One was replaced by a tensor of another form.
        """
        for place, held in zip(self._places, self._held, strict=True):
            if place.read() is not held:
                self._rebind()
                break
        return self._inputs

    def forms(self) -> list[tuple[Any, ...]]:
        """Dtype, shape, strides and device of each input."""
        return [_form(tensor) for tensor in self._inputs]

    @contextmanager
    def replaced(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Put stand-ins in place of the inputs, for as long as a function is traced."""
        saved = [(place.holder, place.name, place.holder[place.name]) for place in self._places]
        try:
            for place, number in zip(self._places, self._numbers, strict=True):
                place.write(tensors[number])
            yield
        finally:
            for holder, name, value in saved:
                holder[name] = value

    def _rebind(self) -> None:
        now = [place.read() for place in self._places]
        for place, old, new in zip(self._places, self._held, now, strict=True):
            if _form(old) != _form(new):
                raise UnseenSignatureError(
                    f"{place.name!r} of the model was {_form(old)} when its programs were "
                    f"compiled and is {_form(new)} now; compile again after a change"
                )
        if _numbers(now) != self._numbers:
            raise UnseenSignatureError(
                "tensors of the model were tied when its programs were compiled, and are others "
                "now; compile again after a change"
            )
        self._held = now
        self._inputs = _inputs(now)


def _numbers(tensors: list[Tensor]) -> list[int]:
    """Which input each place reads: tied weights are one tensor in two places, and one input."""
    known: dict[int, int] = {}
    return [known.setdefault(id(tensor), len(known)) for tensor in tensors]


def _inputs(tensors: list[Tensor]) -> list[Tensor]:
    unique = {id(tensor): tensor for tensor in tensors}
    # Programs are for inference; a tensor that wants a gradient would make another one.
    with torch.inference_mode(False):
        return [tensor.detach() for tensor in unique.values()]


def _places(module: nn.Module) -> Iterator[Place]:
    for part in module.modules():
        for holder in (part._parameters, part._buffers):
            yield from (Place(holder, name) for name, t in holder.items() if t is not None)
        attributes = vars(part)
        for name, value in attributes.items():
            if isinstance(value, Tensor):
                yield Place(attributes, name)
            if isinstance(value, list) and value and all(isinstance(t, Tensor) for t in value):
                yield from (Place(attributes, name, index) for index in range(len(value)))


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device.type
