# SPDX-License-Identifier: Apache-2.0
"""Check and shrink a program cache."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import attrs

from trnport.adapters.program_cache.store import ProgramCache


@attrs.frozen
class Removed:
    """What :func:`prune` removed: programs, leftovers of dead processes, and bytes of both."""

    programs: int
    leftovers: int
    num_bytes: int


def verify(cache: ProgramCache) -> Iterator[tuple[str, str]]:
    """Key and problem of every entry that is damaged."""
    for folder in cache.incomplete():
        yield folder.name, "not complete"
    for item in cache.entries():
        if problem := item.problem():
            yield item.key, problem


def prune(
    cache: ProgramCache, *, max_bytes: int | None = None, max_age: float | None = None
) -> Removed:
    """Remove what is damaged, what dead processes left, and programs over a limit.

    Args:
        cache: The cache.
        max_bytes: Programs used longest ago are removed until the rest takes no more.
        max_age: Programs that were not used for so many seconds are removed.
    """
    leftovers = [*cache.abandoned(), *cache.incomplete()]
    damaged = {key for key, _ in verify(cache)}
    kept, programs, num_bytes, now = 0, 0, 0, time.time()
    for folder in leftovers:
        num_bytes += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        shutil.rmtree(folder, ignore_errors=True)
    for item in cache.entries():
        too_old = max_age is not None and now - item.used > max_age
        too_much = max_bytes is not None and kept + item.num_bytes > max_bytes
        if item.key in damaged or too_old or too_much:
            cache.discard(item.key)
            programs, num_bytes = programs + 1, num_bytes + item.num_bytes
        else:
            kept += item.num_bytes
    return Removed(programs, len(leftovers), num_bytes)
