# SPDX-License-Identifier: Apache-2.0
"""What a fake raises when its caller breaks a port's contract."""

from __future__ import annotations

from trnport.core.errors import TrnportError


class ContractViolationError(TrnportError, AssertionError):
    """A caller, or a wrapped adapter, broke a promise of the port."""
