# SPDX-License-Identifier: Apache-2.0
"""One program on disk: a folder of files and a manifest, which is written last."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import attrs

MANIFEST = "manifest.json"
"""Completion marker of an entry, and what it should contain."""

_FORMAT = 1


@attrs.frozen
class Entry:
    """A complete program.

    Attributes:
        folder: Where its files are.
        name: Name of the program, such as "decode_b4_ctx256".
        files: Relative path to (bytes, SHA-256) of each file.
        created: When it was made, in seconds since the epoch.
        used: When it was last asked for, likewise.
    """

    folder: Path
    name: str
    files: dict[str, tuple[int, str]]
    created: float
    used: float

    @property
    def key(self) -> str:
        """The program's cache key."""
        return self.folder.name

    @property
    def num_bytes(self) -> int:
        """Size of the files."""
        return sum(size for size, _ in self.files.values())

    @classmethod
    def read(cls, folder: Path) -> Entry | None:
        """The entry in a folder, or None: there is none, it is not complete, or a file is cut."""
        manifest = folder / MANIFEST
        try:
            data = json.loads(manifest.read_text(encoding="utf-8"))
            files = {
                path: (int(size), str(digest)) for path, (size, digest) in data["files"].items()
            }
            sizes_match = all((folder / p).stat().st_size == size for p, (size, _) in files.items())
            if data["format"] != _FORMAT or not sizes_match:
                return None
            return cls(folder, data["name"], files, data["created"], manifest.stat().st_mtime)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def touch(self) -> None:
        """Note that it was used; a folder that cannot be written to stays as it is."""
        try:
            os.utime(self.folder / MANIFEST)
        except OSError:
            return

    def problem(self) -> str:
        """What is wrong with the files' contents, or ""."""
        for path, (_, digest) in self.files.items():
            try:
                found = _sha256(self.folder / path)
            except OSError as error:
                return f"{path}: {error.strerror}"
            if found != digest:
                return f"{path} differs from what was stored"
        return ""


def seal(folder: Path, name: str) -> None:
    """Write the manifest of a folder whose files are complete.

    Args:
        folder: Holds everything the entry consists of.
        name: Name of the program.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {
        str(path.relative_to(folder)): (path.stat().st_size, _sha256(path))
        for path in paths
        if path.name != MANIFEST
    }
    manifest = {"format": _FORMAT, "name": name, "created": time.time(), "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
