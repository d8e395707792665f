# SPDX-License-Identifier: Apache-2.0
"""The signature of a call: what has to be equal for one compiled program to serve two calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from torch import Tensor


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
    return f"{_describe(tuple(args))}{_describe(dict(kwargs or {}))}"


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        shape = ",".join(map(str, value.shape))
        return f"{str(value.dtype).removeprefix('torch.')}[{shape}]@{value.device.type}"
    if isinstance(value, Mapping):
        items = ",".join(f"{k}:{_describe(value[k])}" for k in sorted(value, key=str))
        return f"{{{items}}}"
    if isinstance(value, list | tuple):
        return f"({','.join(map(_describe, value))})"
    if attrs.has(type(value)):
        fields = attrs.fields(type(value))
        items = ",".join(f"{f.name}={_describe(getattr(value, f.name))}" for f in fields)
        return f"{type(value).__name__}({items})"
    return repr(value)
