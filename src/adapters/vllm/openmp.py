# SPDX-License-Identifier: Apache-2.0
"""One team of OpenMP threads in a process that computes on a thread of its own."""

from __future__ import annotations

import contextlib
import ctypes

_LIBRARY = "libgomp.so.1"
_PAUSE_HARD = 2
"""``omp_pause_hard`` of OpenMP 5.0's ``omp_pause_resource_t``."""


def release_threads() -> None:
    """End the idle OpenMP threads of the calling thread; its next parallel region makes others.

    Every thread that computes gets a team of its own. With more threads than cores, libgomp lets
    them sleep between parallel regions at once instead of spinning a while, and waking them 200
    times in a step doubles its length. So whoever hands computation to another thread gives up
    its team. Without libgomp nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(_LIBRARY).omp_pause_resource_all(_PAUSE_HARD)
