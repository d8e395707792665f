# SPDX-License-Identifier: Apache-2.0
"""A folder of compiled programs by key.

Whoever finds a program missing takes the lock of its key, looks again, and makes it in a folder
of its own, which a rename publishes. So several processes make a program once, nobody sees half
of one, and a process that dies leaves nothing that others wait for: the operating system gives
its lock back.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog
from filelock import FileLock, Timeout

from trnport.adapters.program_cache import entry
from trnport.adapters.program_cache.entry import Entry
from trnport.core.errors import CompilationError, ConfigError

log = structlog.get_logger(__name__)

FOLDER_VARIABLE = "TRNPORT_CACHE_DIR"
"""Environment variable: where programs are kept."""

SHARED_VARIABLE = "TRNPORT_SHARED_CACHE_DIR"
"""Environment variable: a second folder of programs, which is only read."""

DEFAULT_TIMEOUT = 3600.0
"""Seconds to wait for another process that makes the same program."""


class ProgramCache:
    """Programs by key.

    Args:
        folder: Where programs are kept; made at the first use.
        shared: The folder of another cache, which is only read: programs found there are
            copied into ``folder``.
        timeout: Seconds to wait for another process that makes the same program.
    """

    def __init__(
        self, folder: Path, shared: Path | None = None, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        self.folder = folder
        self._shared = shared
        self._timeout = timeout

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> ProgramCache:
        """The cache that the environment names, or the user's own one.

        Raises:
            ConfigError: The shared folder does not exist.
        """
        given = os.environ if environment is None else environment
        home = Path(given.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trnport"
        shared = given.get(SHARED_VARIABLE)
        if shared and not Path(shared).is_dir():
            raise ConfigError(
                f"{SHARED_VARIABLE}={shared!r} is no folder; mount it, or unset the variable"
            )
        folder = given.get(FOLDER_VARIABLE)
        return cls(Path(folder or home / "programs"), Path(shared) if shared else None)

    def find(self, key: str) -> Entry | None:
        """A program that is in ``folder`` and complete. Takes no lock."""
        found = Entry.read(self._entries / key)
        if found:
            found.touch()
        return found

    def find_or_make(self, key: str, name: str, make: Callable[[Path], None]) -> tuple[Entry, bool]:
        """A program, which at most one process at a time makes.

        Args:
            key: Digest of everything that changes the program.
            name: Name of the program, for people.
            make: Fills an empty folder with the program's files.

        Returns:
            The entry, and whether ``make`` was called.

        Raises:
            CompilationError: Another process holds the lock of the key for too long.
            ConfigError: The folder cannot be written to.
        """
        found = self.find(key)
        if found:
            return found, False
        self._create_folders()
        with self._locked(key, name):
            # Whoever was waiting finds what the others have made.
            found = self.find(key)
            if found:
                return found, False
            self._clear_staging(key)
            shared = Entry.read(self._shared / "entries" / key) if self._shared else None
            if shared:
                return self._publish(key, lambda staging: _copy(shared, staging), name), False
            return self._publish(key, make, name), True

    def discard(self, key: str) -> None:
        """Forget a program that turned out to be unusable; others may be reading it."""
        grave = Path(tempfile.mkdtemp(prefix="discarded-", dir=self._staging))
        with suppress(OSError):
            (self._entries / key).rename(grave / key)
        shutil.rmtree(grave, ignore_errors=True)

    def entries(self) -> list[Entry]:
        """Every complete program, the one used last first."""
        folders = self._entries.iterdir() if self._entries.is_dir() else ()
        found = [read for folder in folders if (read := Entry.read(folder))]
        return sorted(found, key=lambda item: item.used, reverse=True)

    def incomplete(self) -> list[Path]:
        """Folders of entries that no process would load."""
        folders = sorted(self._entries.iterdir()) if self._entries.is_dir() else []
        return [folder for folder in folders if Entry.read(folder) is None]

    def abandoned(self) -> list[Path]:
        """Folders that a process left when it died while it was making a program."""
        folders = sorted(self._staging.iterdir()) if self._staging.is_dir() else []
        return [folder for folder in folders if self._is_free(folder.name.split(".")[0])]

    @property
    def _entries(self) -> Path:
        return self.folder / "entries"

    @property
    def _staging(self) -> Path:
        return self.folder / "staging"

    def _lock_file(self, key: str) -> Path:
        return self.folder / "locks" / f"{key}.lock"

    @contextmanager
    def _locked(self, key: str, name: str) -> Iterator[None]:
        lock = FileLock(self._lock_file(key))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.info("another process compiles this program; waiting for it", program=name)
            self._wait_for(lock, name)
        try:
            yield
        finally:
            lock.release()

    def _wait_for(self, lock: FileLock, name: str) -> None:
        try:
            lock.acquire(timeout=self._timeout)
        except Timeout:
            raise CompilationError(
                f"program {name!r}: another process has been compiling it for more than "
                f"{self._timeout:.0f} s; it holds {lock.lock_file}. End that process, or set "
                f"{FOLDER_VARIABLE} to another folder"
            ) from None

    def _is_free(self, key: str) -> bool:
        try:
            with FileLock(self._lock_file(key), timeout=0):
                return True
        except Timeout:
            return False

    def _create_folders(self) -> None:
        try:
            for folder in (self._entries, self._staging, self._lock_file("").parent):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the program cache {self.folder} cannot be written to ({error.strerror}); set "
                f"{FOLDER_VARIABLE} to a folder that can"
            ) from error

    def _clear_staging(self, key: str) -> None:
        # We hold the key's lock, so whoever made these is dead.
        for left in self._staging.glob(f"{key}.*"):
            shutil.rmtree(left, ignore_errors=True)

    def _publish(self, key: str, make: Callable[[Path], None], name: str) -> Entry:
        staging = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=self._staging))
        try:
            make(staging)
            entry.seal(staging, name)
            target = self._entries / key
            shutil.rmtree(target, ignore_errors=True)  # one that is not complete
            staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        made = Entry.read(target)
        if made is None:
            raise CompilationError(f"program {name!r} was stored in {target} and is not there")
        return made


def _copy(source: Entry, target: Path) -> None:
    for path in source.files:
        copy = target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.folder / path, copy)
