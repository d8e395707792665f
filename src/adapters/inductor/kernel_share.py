# SPDX-License-Identifier: Apache-2.0
"""Machine code of kernels that several programs contain, compiled once.

Programs of one model differ in a few kernels, those of its ranks in fewer still. Inductor names a
kernel's files by digest of source and command line, and is given a folder for each program here;
so what one program has is looked for by name before it is compiled for another.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

from filelock import FileLock
from torch._inductor import codecache
from torch._inductor.cpp_builder import CppBuilder
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from trnport.toolchain import target


def folder() -> Path:
    """A part of inductor's own folder of the user, which also holds its precompiled headers."""
    # Names of kernels say nothing about headers and compiler versions.
    machine = hashlib.sha256(target().encode()).hexdigest()[:16]
    return Path(default_cache_dir()) / "trnport-kernels" / machine


@contextmanager
def shared(kernels: Path | None = None) -> Iterator[None]:
    """Inside, kernels that are in a folder are copied from it, and new ones are left there.

    Args:
        kernels: The folder; :func:`folder` when None. It may be removed at any time.
    """
    place = kernels or folder()
    compile_all = codecache._worker_compile_cpp

    def copy_or_compile(lock_path: str, builders: Sequence[CppBuilder]) -> None:
        made = Path(builders[-1].get_target_file_path())
        if made.suffix != ".so":  # a header, which inductor shares itself
            compile_all(lock_path, builders)
            return
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / f"{made.name}.lock"):
            if not made.exists():
                with suppress(FileNotFoundError):
                    _publish(place / made.name, made)
            compile_all(lock_path, builders)
            if not (place / made.name).exists():
                _publish(made, place / made.name)

    with mock.patch.object(codecache, "_worker_compile_cpp", copy_or_compile):
        yield


def _publish(source: Path, copy: Path) -> None:
    """Copy a file; whoever looks for the copy finds none or all of it."""
    descriptor, name = tempfile.mkstemp(dir=copy.parent)
    os.close(descriptor)
    try:
        shutil.copy(source, name)  # with its permissions
        Path(name).rename(copy)
    finally:
        Path(name).unlink(missing_ok=True)
