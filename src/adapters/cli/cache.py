# SPDX-License-Identifier: Apache-2.0
"""``trnport cache``: what is in the cache of compiled programs, and less of it."""

from __future__ import annotations

import argparse
import time
from typing import Any

from trnport import bootstrap
from trnport.adapters.cli.text import section, size

_HOUR, _DAY = 3600.0, 86400.0


def run_cache(arguments: argparse.Namespace) -> int:
    """List, check or shrink the cache.

    Returns:
        0, or 1 when ``verify`` finds damage.
    """
    cache = bootstrap.program_cache()
    if arguments.action == "verify":
        return _verify(cache)
    if arguments.action == "prune":
        return _prune(cache, arguments.max_gib, arguments.max_age_days)
    entries = cache.entries()
    total = sum(entry.num_bytes for entry in entries)
    rows = [
        (entry.key[:12], entry.name, size(entry.num_bytes), f"used {_ago(entry.used)}")
        for entry in entries
    ]
    title = f"{cache.folder}: {len(entries)} programs, {size(total)}"
    print("\n".join(section(title, rows)).rstrip())
    return 0


def _verify(cache: Any) -> int:
    problems = list(bootstrap.verify_programs(cache))
    for key, problem in problems:
        print(f"{key}: {problem}")
    print(f"{len(cache.entries())} programs, {len(problems)} damaged")
    if problems:
        print("`trnport cache prune` removes what is damaged; it is compiled again when needed.")
    return 1 if problems else 0


def _prune(cache: Any, max_gib: float | None, max_days: float | None) -> int:
    removed = bootstrap.prune_programs(
        cache,
        max_bytes=None if max_gib is None else int(max_gib * 2**30),
        max_age=None if max_days is None else max_days * _DAY,
    )
    print(
        f"removed {removed.programs} programs and {removed.leftovers} leftovers, "
        f"{size(removed.num_bytes)}"
    )
    return 0


def _ago(then: float) -> str:
    hours = (time.time() - then) / _HOUR
    return f"{hours:.0f} h ago" if hours < 48 else f"{hours / 24:.0f} days ago"
