# SPDX-License-Identifier: Apache-2.0
"""Run tests against a copy of the repository with one bug in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attrs

from tests.mutation.mutant import Mutant

COPIED = ("src", "tests", "pyproject.toml")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+?)(?: - .*)?$", re.MULTILINE)


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
    """A copy of the sources and tests, in which one file may be broken at a time."""

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
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, folder / name, ignore=ignored)
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
        source = path.read_text(encoding="utf-8")
        path.write_text(mutant.applied(source), encoding="utf-8")
        try:
            return self.run(mutant.tests, timeout)
        finally:
            path.write_text(source, encoding="utf-8")

    def run(self, arguments: tuple[str, ...], timeout: float) -> Outcome:
        """Run pytest in the copy until the first failure.

        Args:
            arguments: For pytest.
            timeout: Seconds.
        """
        environment = dict(
            os.environ,
            PYTHONPATH=str(self.folder / ".links"),
            PYTHONDONTWRITEBYTECODE="1",  # a file changed twice in a second would look unchanged
            OMP_NUM_THREADS="1",
            HYPOTHESIS_PROFILE="mutation",
        )
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, *arguments],
                cwd=self.folder,
                env=environment,
                timeout=timeout,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome("killed", "timeout")
        if done.returncode == 0:
            return Outcome("survived")
        found = FAILED.search(done.stdout)
        if done.returncode != 1 or found is None:
            return Outcome("broken", (done.stdout + done.stderr)[-2000:])
        return Outcome("killed", found.group(1))
