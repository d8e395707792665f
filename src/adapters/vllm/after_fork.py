# SPDX-License-Identifier: Apache-2.0
"""Work for a thread that may start only once a process has forked."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable

_NICENESS = 10


class AfterFork:
    """Runs work on a thread once, after the next fork; forks that follow wait for its end.

    A child that is forked while a thread imports a module could never import that module.
    """

    def __init__(self) -> None:
        self._work: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self._registered = False

    def arm(self, work: Callable[[], None]) -> None:
        """Choose the work, unless it has begun already.

        Args:
            work: Must not raise.
        """
        if self._thread is not None:
            return
        self._work = work
        if not self._registered:
            self._registered = True
            os.register_at_fork(
                before=self.wait, after_in_parent=self._start, after_in_child=self._forget
            )

    def wait(self) -> None:
        """Wait for the end of the work, if it has begun."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        if self._work is None or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="trnport-meanwhile", daemon=True)
        self._thread.start()

    def _forget(self) -> None:
        self._work = None  # the child's own forks are none of its business

    def _run(self) -> None:
        # The child has better use for the processors: by the time it is done, so is this. Threads
        # have a priority of their own on Linux alone.
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        work, self._work = self._work, None
        if work is not None:
            work()
