# SPDX-License-Identifier: Apache-2.0
"""A strict functional simulator of NKI 0.6 kernels on numpy.

from trnport.adapters.nki.simulator import simulate

simulate(kernel, target="trn2", lnc=2)(x, w)
"""

from trnport.adapters.nki.simulator.launch import Kernel, jit, simulate
from trnport.adapters.nki.simulator.rules import (
    NkiError,
    NkiValidationError,
    NotSimulatedError,
    RuleViolationError,
)

__all__ = [
    "Kernel",
    "NkiError",
    "NkiValidationError",
    "NotSimulatedError",
    "RuleViolationError",
    "jit",
    "simulate",
]
