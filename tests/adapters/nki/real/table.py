# SPDX-License-Identifier: Apache-2.0
"""All programs, and the comparison of what two simulators made of them."""

from __future__ import annotations

import math
from typing import Any

from tests.adapters.nki.real.program import Program


def programs() -> dict[str, Program]:
    """Every program by name."""
    from tests.adapters.nki.real import arithmetic, kernels, lookup, movement, rarer

    found: dict[str, Program] = {}
    for module in (movement, arithmetic, lookup, rarer, kernels):
        found |= module.PROGRAMS
    return found


def difference(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> str:
    """Say how two outcomes of one program differ; empty if they agree.

    Args:
        ours: What the embedded simulator gave (see `play.outcome`).
        theirs: What the other one gave.
        tolerance: Largest max|a - b| / max|b|.
    """
    if "raised" in ours or "raised" in theirs:
        return f"ours: {ours.get('raised', 'ran')}; theirs: {theirs.get('raised', 'ran')}"
    for kind in ("results", "arguments"):
        if len(ours[kind]) != len(theirs[kind]):
            return f"{kind}: {len(ours[kind])} and {len(theirs[kind])}"
        for i, (mine, other) in enumerate(zip(ours[kind], theirs[kind], strict=True)):
            found = _array_difference(mine, other, tolerance)
            if found:
                return f"{kind}[{i}]: {found}"
    return ""


def _array_difference(mine: dict[str, Any], other: dict[str, Any], tolerance: float) -> str:
    if mine["shape"] != other["shape"]:
        return f"shape {mine['shape']} and {other['shape']}"
    pairs = [(float(a), float(b)) for a, b in zip(mine["values"], other["values"], strict=True)]
    finite = [abs(b) for _, b in pairs if math.isfinite(b)]
    bound = tolerance * max(finite, default=0.0)
    for place, (a, b) in enumerate(pairs):
        same = a == b or (math.isnan(a) and math.isnan(b))
        if not same and not abs(a - b) <= bound:
            return f"element {place} is {a!r} here and {b!r} there (allowed {bound:.3g})"
    return ""
