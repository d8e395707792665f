# SPDX-License-Identifier: Apache-2.0
"""Seed every bug and report which tests notice: `python -m tests.mutation --help`."""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.mutant import Mutant
from tests.mutation.mutants import MUTANTS
from tests.mutation.report import document
from tests.mutation.trial import Copy, Outcome
from tests.mutation.worker import preload

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/mutations.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("only", nargs="*", help="ids or their beginnings; the report stays as is")
    parser.add_argument("--jobs", type=int, default=2, help="copies to work on at a time")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one bug's tests")
    given = parser.parse_args()
    preload()
    chosen = [m for m in MUTANTS if not given.only or m.id.startswith(tuple(given.only))]
    with tempfile.TemporaryDirectory() as folder:
        outcomes = try_all(chosen, Path(folder), given.jobs, given.timeout)
    if not given.only:
        DOCUMENT.write_text(document(outcomes, ROOT / "src"), encoding="utf-8")
    return 0 if all(outcome.verdict == "killed" for outcome in outcomes.values()) else 1


def try_all(chosen: list[Mutant], folder: Path, jobs: int, timeout: float) -> dict[str, Outcome]:
    """Outcome by id, in the order of the list."""
    (folder / "first").mkdir()
    first = Copy(ROOT, folder / "first")
    for arguments in selections(chosen):
        print(f"without a bug: {' '.join(arguments)}", flush=True)
        outcome = first.run(arguments, timeout)
        if outcome.verdict != "survived":
            sys.exit(f"{' '.join(arguments)} fail without a bug: {outcome.by}")
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for i in range(jobs):
        (folder / str(i)).mkdir()
        copies.put(Copy(first.folder, folder / str(i)))

    def attempt(mutant: Mutant) -> Outcome:
        copy = copies.get()
        start = time.monotonic()
        try:
            outcome = copy.try_mutant(mutant, timeout)
        finally:
            copies.put(copy)
        seconds = time.monotonic() - start
        print(f"{outcome.verdict:9}{mutant.id:26}{seconds:4.0f} s  {outcome.by}", flush=True)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip([m.id for m in chosen], pool.map(attempt, chosen), strict=True))


def selections(chosen: list[Mutant]) -> list[tuple[str, ...]]:
    """Every test that the bugs name, in as few runs as their -k options allow."""
    files: dict[tuple[str, ...], set[str]] = {}
    for mutant in chosen:
        at = mutant.tests.index("-k") if "-k" in mutant.tests else len(mutant.tests)
        files.setdefault(mutant.tests[at:], set()).update(mutant.tests[:at])
    return [(*sorted(paths), *options) for options, paths in files.items()]


if __name__ == "__main__":
    sys.exit(main())
