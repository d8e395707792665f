# SPDX-License-Identifier: Apache-2.0
"""One seeded bug: a piece of a source file and what replaces it."""

from __future__ import annotations

import attrs


@attrs.frozen
class Mutant:
    """A bug to seed.

    Attributes:
        id: Unique, short.
        file: Source file, relative to ``src``.
        old: Text that occurs exactly once in the file.
        new: What replaces it.
        kind: What the bug is, in a few words.
        tests: Arguments for pytest: the files that should notice.
    """

    id: str
    file: str
    old: str
    new: str
    kind: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        """The file's text with the bug.

        Raises:
            ValueError: The old text does not occur exactly once.
        """
        if (found := source.count(self.old)) != 1:
            raise ValueError(f"mutant {self.id}: old text occurs {found} times in {self.file}")
        return source.replace(self.old, self.new)

    def line(self, source: str) -> int:
        """Number of the line on which the old text starts."""
        return source[: source.index(self.old)].count("\n") + 1
