# SPDX-License-Identifier: Apache-2.0
"""A call as a flat list of tensors, and the way back.

A compiled program takes a list of tensors. What surrounds them (keywords, metadata objects,
integers) is baked into it, so each call has to be compared with the program's own; at every step
:class:`trnport.core.known_call.KnownCall` does that, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from torch import Tensor

_PLAIN = (int, bool, float, str, type(None))


def flatten(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Tensor], list[Any]]:
    """Take a call apart.

    Returns:
        Its tensors in a fixed order, and a list that is equal for two calls if one program
        serves both: it holds shapes, types and values of everything else. Objects that occur
        several times, such as the metadata that layers share, are listed once, so *which*
        objects are shared is a part of it.
    """
    tensors: list[Tensor] = []
    frame: list[Any] = []
    seen: dict[int, int] = {}
    _take_apart(args, tensors, frame, seen)
    _take_apart(kwargs, tensors, frame, seen)
    return tensors, frame


def rebuild(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: list[Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call of the same form with other tensors, in the order of :func:`flatten`."""
    supply = iter(tensors)
    memo: dict[int, Any] = {}
    return _put_together(args, supply, memo), dict(_put_together(kwargs, supply, memo))


def _take_apart(value: Any, tensors: list[Tensor], frame: list[Any], seen: dict[int, int]) -> None:
    if isinstance(value, Tensor):
        tensors.append(value)
        frame += (value.dtype, value.shape, value.device.type)
    elif isinstance(value, _PLAIN):
        frame += (type(value), value)
    elif isinstance(value, Mapping):
        frame.append(len(value))
        for key in _keys(value):
            frame.append(key)
            _take_apart(value[key], tensors, frame, seen)
    elif isinstance(value, list | tuple):
        frame.append(len(value))
        for item in value:
            _take_apart(item, tensors, frame, seen)
    elif attrs.has(type(value)):
        number = seen.get(id(value))
        if number is not None:
            frame.append(number)
            return
        # The caller holds the value, so its id stays its own for the length of the call.
        seen[id(value)] = len(seen)
        frame.append(type(value))
        for name in _field_names(type(value)):
            _take_apart(getattr(value, name), tensors, frame, seen)
    else:
        frame.append(repr(value))


def _put_together(value: Any, supply: Iterator[Tensor], memo: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        return next(supply)
    if isinstance(value, Mapping):
        built = {key: _put_together(value[key], supply, memo) for key in _keys(value)}
        return {key: built[key] for key in value}  # models may look at the first one
    if isinstance(value, list | tuple):
        items = [_put_together(item, supply, memo) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if attrs.has(type(value)):
        if id(value) not in memo:
            names = _field_names(type(value))
            fields = {name: _put_together(getattr(value, name), supply, memo) for name in names}
            memo[id(value)] = attrs.evolve(value, **fields)
        return memo[id(value)]
    return value


def _keys(mapping: Mapping[Any, Any]) -> list[Any]:
    return sorted(mapping, key=str)


def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(cls))
