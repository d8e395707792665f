# SPDX-License-Identifier: Apache-2.0
"""The signature of a call: what has to be equal for one compiled program to serve two calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from torch import Tensor

_CONTEXT = 60
"""Characters shown around the first difference of two signatures."""


def signature_of(args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> str:
    """Describe a call's arguments without their tensors' contents.

    Tensors become dtype, shape and device type; containers and attrs classes are walked; every
    other leaf stands for its value, since a program may have it baked in.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments; their order does not matter.

    Returns:
        A readable string, equal for two calls if and only if one program serves both.
    """
    # Layers share their metadata, so one description serves all of them.
    known: dict[int, str] = {}
    return f"{_describe(tuple(args), known)}{_describe(dict(kwargs or {}), known)}"


def difference(expected: str, got: str) -> str:
    """Show where two signatures begin to differ; whole ones run to thousands of characters."""
    paired = zip(expected, got, strict=False)
    shorter = min(len(expected), len(got))
    at = next((i for i, (a, b) in enumerate(paired) if a != b), shorter)
    start = max(0, at - _CONTEXT)
    return (
        f"at character {at} it has ...{expected[start : at + _CONTEXT]!r}, "
        f"the call ...{got[start : at + _CONTEXT]!r}"
    )


def _describe(value: Any, known: dict[int, str]) -> str:
    if isinstance(value, Tensor):
        shape = ",".join(map(str, value.shape))
        return f"{str(value.dtype).removeprefix('torch.')}[{shape}]@{value.device.type}"
    if isinstance(value, Mapping):
        items = ",".join(f"{k}:{_describe(value[k], known)}" for k in sorted(value, key=str))
        return f"{{{items}}}"
    if isinstance(value, list | tuple):
        return f"({','.join(_describe(item, known) for item in value)})"
    if attrs.has(type(value)):
        # The caller holds the value, so its id stays its own for the length of the call.
        if id(value) not in known:
            fields = attrs.fields(type(value))
            items = ",".join(f"{f.name}={_describe(getattr(value, f.name), known)}" for f in fields)
            known[id(value)] = f"{type(value).__name__}({items})"
        return known[id(value)]
    return repr(value)
