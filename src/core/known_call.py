# SPDX-License-Identifier: Apache-2.0
"""Recognise a call of a known form at every step, without describing it first.

A signature is a string of thousands of characters, since each layer's metadata is in it. The
form of a program's first call is kept instead, and later calls are compared with it leaf by leaf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

_COMPARABLE = (int, bool, str, type(None))
"""Types of leaves whose equal values look equal, unlike 0.0 and -0.0."""


class KnownCall:
    """The form of one call.

    A call is recognised only if it has the signature of the first one (see
    :func:`trnport.core.signature.signature_of`) and shares objects between its arguments in the
    same way. One that is not recognised may have it all the same, with other types of containers.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        seen: dict[int, int] = {}
        self._args = _form_of(args, seen)
        self._kwargs = _form_of(dict(kwargs), seen)

    def tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor] | None:
        """The tensors of a call that is recognised, else None.

        Positional arguments come first, mappings in the order of their sorted keys, and an
        object that occurs several times where it occurs first.
        """
        found = _Found()
        if self._args.take(args, found) and self._kwargs.take(kwargs, found):
            return found.tensors
        return None


class _Found:
    """What a comparison has met so far: tensors, and objects where they occur first."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.objects: list[Any] = []


class _Form(Protocol):
    def take(self, value: Any, found: _Found) -> bool:
        """Whether a value has this form; says what it met."""


@attrs.frozen
class _TensorForm:
    dtype: torch.dtype
    shape: torch.Size
    device_type: str

    def take(self, value: Any, found: _Found) -> bool:
        if not isinstance(value, Tensor):
            return False
        found.tensors.append(value)
        return (
            value.dtype is self.dtype
            and value.shape == self.shape
            and value.device.type == self.device_type
        )


@attrs.frozen
class _MappingForm:
    kind: Any
    items: tuple[tuple[Any, _Form], ...]

    def take(self, value: Any, found: _Found) -> bool:
        if type(value) is not self.kind or len(value) != len(self.items):
            return False
        for key, form in self.items:
            if key not in value or not form.take(value[key], found):
                return False
        return True


@attrs.frozen
class _SequenceForm:
    kind: Any
    items: tuple[_Form, ...]

    def take(self, value: Any, found: _Found) -> bool:
        if type(value) is not self.kind or len(value) != len(self.items):
            return False
        return all(form.take(item, found) for item, form in zip(value, self.items, strict=True))


@attrs.frozen
class _ObjectForm:
    """An object of an attrs class where it occurs first; its number is its place in a list."""

    kind: Any
    fields: tuple[tuple[str, _Form], ...]

    def take(self, value: Any, found: _Found) -> bool:
        if type(value) is not self.kind or any(value is known for known in found.objects):
            return False
        found.objects.append(value)
        return all(form.take(getattr(value, name), found) for name, form in self.fields)


@attrs.frozen
class _AgainForm:
    """An object that occurred before."""

    number: int

    def take(self, value: Any, found: _Found) -> bool:
        return value is found.objects[self.number]


@attrs.frozen
class _LeafForm:
    kind: Any
    value: Any

    def take(self, value: Any, found: _Found) -> bool:
        del found  # a leaf has nothing in it
        return type(value) is self.kind and bool(value == self.value)


@attrs.frozen
class _ShownForm:
    """A leaf that is compared as it is shown."""

    kind: Any
    shown: str

    def take(self, value: Any, found: _Found) -> bool:
        del found
        return type(value) is self.kind and repr(value) == self.shown


def _form_of(value: Any, seen: dict[int, int]) -> _Form:
    kind: Any = type(value)
    if isinstance(value, Tensor):
        return _TensorForm(value.dtype, value.shape, value.device.type)
    if isinstance(value, Mapping):
        keys = sorted(value, key=str)
        return _MappingForm(kind, tuple((key, _form_of(value[key], seen)) for key in keys))
    if isinstance(value, list | tuple):
        return _SequenceForm(kind, tuple(_form_of(item, seen) for item in value))
    if attrs.has(kind):
        # The caller holds the value, so its id stays its own for the length of the call.
        if id(value) in seen:
            return _AgainForm(seen[id(value)])
        seen[id(value)] = len(seen)
        names = [field.name for field in attrs.fields(kind)]
        fields = [(name, _form_of(getattr(value, name), seen)) for name in names]
        return _ObjectForm(kind, tuple(fields))
    if isinstance(value, _COMPARABLE):
        return _LeafForm(kind, value)
    return _ShownForm(kind, repr(value))
