# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between ranks that are threads."""

from __future__ import annotations

from trnport.core.errors import TrnportError


class CollectiveMismatchError(TrnportError, RuntimeError):
    """Ranks of one group made different calls; the message names both sides."""


class RankAbortedError(TrnportError, RuntimeError):
    """This rank was stopped at a collective because another one failed."""
