# SPDX-License-Identifier: Apache-2.0
"""NKI kernels, and a simulator that runs them without an accelerator.

Names load when they are used: the simulator needs numpy and ml_dtypes, the kernels also torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_PLACES = {
    "NkiKernels": "trnport.adapters.nki.adapter",
    "TARGETS": "trnport.adapters.nki.simulator.targets",
    "simulate": "trnport.adapters.nki.simulator",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__} has no {name}; it has {', '.join(_PLACES)}")
    return getattr(importlib.import_module(_PLACES[name]), name)
