# SPDX-License-Identifier: Apache-2.0
"""What adapters that compile something ask of the place where results are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class StoredProgram(Protocol):
    """A program in a store."""

    @property
    def folder(self) -> Path:
        """Where its files are."""


class ProgramStore(Protocol):
    """Where programs are kept between starts."""

    def find_or_make(
        self, key: str, name: str, make: Callable[[Path], None]
    ) -> tuple[StoredProgram, bool]:
        """The program of a key, and whether ``make`` had to fill its folder."""

    def discard(self, key: str) -> None:
        """Forget an unusable program."""
