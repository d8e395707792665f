# SPDX-License-Identifier: Apache-2.0
"""Flags that the C++ compiler needs besides those inductor gives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch._inductor import cpp_builder

FLAGS = ("fwrapv",)
"""Without the dash; a part of every key.

fwrapv: int64 tensors wrap around, and C++ integers must not. Inductor turns a product of an
``arange`` into index arithmetic; from a product that would overflow, g++ concludes that a loop
ends early, drops the check for its last, partial vector, and writes behind the tensor's end.
"""


@contextmanager
def given() -> Iterator[None]:
    """Inside, inductor compiles and looks for machine code with these flags."""
    original = cpp_builder._get_optimization_cflags

    def extended(*args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
        cflags, ldflags = original(*args, **kwargs)
        return [*cflags, *FLAGS], ldflags

    with mock.patch.object(cpp_builder, "_get_optimization_cflags", extended):
        yield
