# SPDX-License-Identifier: Apache-2.0
"""Pytest in a process forked from one that has imported the slow packages, but nothing of ours."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

SLOW = (
    "pytest",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "ml_dtypes",
    "structlog",
    "hypothesis.strategies",
    "transformers.models.llama.modeling_llama",
    "transformers.models.gpt_oss.modeling_gpt_oss",
)

CONTEXT = multiprocessing.get_context("forkserver")
TIMED_OUT = -1


def preload() -> None:
    """Have the slow packages imported once, by the process that others are forked from."""
    CONTEXT.set_forkserver_preload(list(SLOW))


def run_pytest(
    folder: Path, arguments: tuple[str, ...], timeout: float, *, compiled: bool
) -> tuple[int, str]:
    """Run pytest in a copy of the repository.

    Args:
        folder: The copy.
        arguments: For pytest.
        timeout: Seconds.
        compiled: Whether to leave compiled modules behind.

    Returns:
        Pytest's exit code, or TIMED_OUT, and what it printed.
    """
    log = folder / "output.txt"
    process = CONTEXT.Process(target=_main, args=(folder, arguments, log, compiled))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
        return TIMED_OUT, ""
    code = process.exitcode
    assert code is not None
    return code, log.read_text(encoding="utf-8", errors="replace")


def _main(folder: Path, arguments: tuple[str, ...], log: Path, compiled: bool) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ.update(HYPOTHESIS_PROFILE="mutation", PYTHONPATH=str(folder / ".links"))
    sys.dont_write_bytecode = not compiled
    # Imports of `trnport` and of helpers of the tests must find the copy.
    sys.path[:0] = [str(folder / ".links"), str(folder)]
    for name in [name for name in sys.modules if name.split(".")[0] in {"tests", "trnport"}]:
        del sys.modules[name]

    import pytest

    sys.exit(int(pytest.main(list(arguments))))
