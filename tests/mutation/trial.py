# SPDX-License-Identifier: Apache-2.0
"""Run tests against a copy of the repository with one bug in it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import attrs

from tests.mutation import worker
from tests.mutation.mutant import Mutant

COPIED = ("src", "tests", "pyproject.toml")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", re.MULTILINE)


@attrs.frozen
class Outcome:
    """What the tests said.

    Attributes:
        verdict: "killed", "survived" or "broken": the tests did not even start.
        by: The first failing test, "timeout", or the end of pytest's output when broken.
    """

    verdict: str
    by: str = ""


class Copy:
    """A copy of the sources and tests, in which one file may be broken at a time.

    Runs without a bug leave compiled modules behind, which later runs use but for the broken one.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        """Copy what tests need.

        Args:
            root: The repository.
            folder: An empty folder to copy to.
        """
        self.folder = folder
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, folder / name)
            else:
                shutil.copy(source, folder / name)
        # Imports of `trnport` find the copy: src/ itself is the package.
        (folder / ".links").mkdir()
        (folder / ".links/trnport").symlink_to("../src")

    def try_mutant(self, mutant: Mutant, timeout: float) -> Outcome:
        """Seed a bug, run its tests, and take the bug out again.

        Args:
            mutant: The bug.
            timeout: Seconds after which a run counts as killed.
        """
        path = self.folder / "src" / mutant.file
        source, status = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutant.applied(source), encoding="utf-8")
        # Compiled modules are matched by size and second of change: make sure that it differs.
        os.utime(path, (status.st_atime, status.st_mtime + 60))
        try:
            return self.run(mutant.tests, timeout, compiled=False)
        finally:
            path.write_text(source, encoding="utf-8")
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def run(self, arguments: tuple[str, ...], timeout: float, *, compiled: bool = True) -> Outcome:
        """Run pytest in the copy until the first failure.

        Args:
            arguments: For pytest.
            timeout: Seconds.
            compiled: Whether to leave compiled modules behind.
        """
        options = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider", *arguments)
        code, text = worker.run_pytest(self.folder, options, timeout, compiled=compiled)
        if code == worker.TIMED_OUT:
            return Outcome("killed", "timeout")
        if code == 0:
            return Outcome("survived")
        found = FAILED.search(text)
        if code != 1 or found is None:
            return Outcome("broken", text[-2000:])
        return Outcome("killed", found.group(1))
