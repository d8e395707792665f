# SPDX-License-Identifier: Apache-2.0
"""Whether a server's workers could hand over their metrics."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import attrs

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


@attrs.frozen
class MetricsState:
    """The folder through which metrics reach ``/metrics``.

    Attributes:
        folder: Where it is, a clause.
        problems: What keeps a server from starting, with what to do about it.
        warnings: What would make numbers wrong.
    """

    folder: str
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def inspect_metrics(environment: Mapping[str, str]) -> MetricsState:
    """Look at the folder that a server started now would use."""
    given = environment.get(VARIABLE)
    if given:
        return _given(given)
    try:
        parent = tempfile.gettempdir()
    except FileNotFoundError as error:
        return MetricsState("none", (f"{error.strerror}; set TMPDIR to a writable directory",))
    return MetricsState(f"a folder of its own in {parent}, removed at the end")


def _given(folder: str) -> MetricsState:
    shown = f"{folder}, from {VARIABLE}"
    if not Path(folder).is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        problem = (
            f"{VARIABLE}={folder!r} is not a writable directory; create it, or unset the variable "
            "to let the server make one"
        )
        return MetricsState(shown, (problem,))
    if any(Path(folder).glob("*.db")):
        warning = (
            f"{VARIABLE}={folder!r} holds files of an earlier run, and the server would add to "
            "their numbers; empty it, or unset the variable"
        )
        return MetricsState(shown, warnings=(warning,))
    return MetricsState(shown)
