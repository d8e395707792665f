# SPDX-License-Identifier: Apache-2.0
"""How the first process of ``vllm serve`` starts, and makes the others: by fork.

A spawned process imports vLLM and PyTorch anew, six seconds of processor time for each one.
vLLM 0.33 ends OpenMP's threads before it forks, and a server has run no model by then. In
scripts, whose threads nobody knows, processes are still spawned.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import socket
import stat
import sys
import threading
from pathlib import Path

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
"""vLLM's variable for the start method."""

_COMMAND_LINE = "vllm.entrypoints.cli.main"
_PR_SET_PDEATHSIG = 1


def choose_start_method() -> None:
    """Choose fork in the first process of ``vllm serve``, unless the user has chosen.

    vLLM's command line chooses spawn once its modules are imported; our plugin is asked before.
    """
    if not is_server() or METHOD in os.environ:
        return
    os.environ[METHOD] = "fork"
    separate_children()


def pause_collector() -> None:
    """Spare a server the search for garbage among a million objects that its imports make.

    It goes on with the first configuration, see :func:`resume_collector`.
    """
    if is_server():
        gc.disable()


def resume_collector() -> None:
    """Collect garbage again, except among what the imports made.

    Modules live as long as the process. Unless they are set aside, the next collection searches
    them all, and so do those with which vLLM ends the start of the server and of its engine.
    """
    if is_server() and not gc.isenabled():
        gc.freeze()
        gc.enable()


def is_server() -> bool:
    """Whether this is the first process of ``vllm serve``."""
    # As `python -m`, the module is known as __main__ only.
    run_as = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
    is_command = _COMMAND_LINE in sys.modules or run_as == _COMMAND_LINE
    return is_command and sys.argv[1:2] == ["serve"] and multiprocessing.parent_process() is None


def separate_children() -> None:
    """Let processes forked from here on end with their parent and leave its addresses alone.

    An engine that outlived a killed server would otherwise keep its port, and the kernel would
    hand every other connection of the next server to it.
    """
    fork = _Fork()
    os.register_at_fork(before=fork.before, after_in_child=fork.in_child)


class _Fork:
    """What the two sides of a fork have to know about it."""

    def __init__(self) -> None:
        self._parent = os.getpid()
        self._from_main_thread = True

    def before(self) -> None:
        self._parent = os.getpid()
        self._from_main_thread = threading.current_thread() is threading.main_thread()

    def in_child(self) -> None:
        # The signal comes when the *thread* that forked ends.
        if self._from_main_thread:
            _end_with(self._parent)
        for descriptor in _listening():
            # Replaced, not closed: the parent's socket object still believes to own the number.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, descriptor)
            os.close(nothing)


def _end_with(parent: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it died before it could be heard
        os._exit(1)


def _listening() -> list[int]:
    found = []
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _accepts(descriptor):
                found.append(descriptor)
    return found


def _accepts(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        return bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
