# SPDX-License-Identifier: Apache-2.0
"""Which calls ran on a kernel of ours, which did not, and why."""

from __future__ import annotations

from collections import Counter
from typing import Any

import structlog
import torch

from trnport.core.errors import TrnportError

log = structlog.get_logger(__name__)


class KernelLimitError(TrnportError):
    """A kernel cannot take a call, and the fallback was switched off."""


class Coverage:
    """Counts calls by operator. A call in a traced program counts once, when it is traced."""

    def __init__(self) -> None:
        self._on_kernel: Counter[str] = Counter()
        self._fallback: dict[str, Counter[str]] = {}

    def note(self, operator: str, reason: str) -> None:
        """Count one call.

        Args:
            operator: Name of the operator.
            reason: Why the fallback took it; "" when a kernel did.
        """
        if not reason:
            self._on_kernel[operator] += 1
            return
        reasons = self._fallback.setdefault(operator, Counter())
        if reason not in reasons:
            log.warning("no kernel for this call", operator=operator, reason=reason)
        reasons[reason] += 1

    def report(self) -> dict[str, dict[str, Any]]:
        """``{operator: {"nki": calls, "fallback": {reason: calls}}}``, operators sorted."""
        names = sorted({*self._on_kernel, *self._fallback})
        return {
            name: {
                "nki": self._on_kernel[name],
                "fallback": dict(self._fallback.get(name, {})),
            }
            for name in names
        }


@torch.compiler.assume_constant_result
def note_once(coverage: Coverage, operator: str, reason: str) -> bool:
    """Count a call without leaving a trace in a compiled program."""
    coverage.note(operator, reason)
    return True
