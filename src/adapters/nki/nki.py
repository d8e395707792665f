# SPDX-License-Identifier: Apache-2.0
"""The one place kernels import NKI from: the real package, or the embedded simulator.

    from trnport.adapters.nki.nki import nki, nisa, nl

PyPI's `nki` is an empty placeholder that imports fine, so the real one is known by `simulate`.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["REAL", "nisa", "nki", "nl"]


def _real() -> Any:
    try:
        found = importlib.import_module("nki")
    except ImportError:
        return None
    return found if hasattr(found, "simulate") else None


_found = _real()
REAL: bool = _found is not None
_package = "nki" if REAL else "trnport.adapters.nki.simulator"
nki: Any = _found if REAL else importlib.import_module(_package)
nl: Any = importlib.import_module(f"{_package}.language")
nisa: Any = importlib.import_module(f"{_package}.isa")
