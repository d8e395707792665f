# SPDX-License-Identifier: Apache-2.0
"""`nki.isa`: every name that a module of this package lists in `__all__`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from trnport.adapters.nki.simulator.rules import NkiValidationError as NkiValidationError


def _collect() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        family = importlib.import_module(f"{__name__}.{module}")
        for name in getattr(family, "__all__", ()):
            names[name] = getattr(family, name)
    return names


_names = _collect()
globals().update(_names)
__all__ = sorted([*_names, "NkiValidationError"])  # noqa: PLE0605 - the families know their names


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"nki.isa.{name} is not simulated; simulated instructions: {', '.join(__all__)}"
    )
