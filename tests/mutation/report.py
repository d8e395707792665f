# SPDX-License-Identifier: Apache-2.0
"""The report, docs/mutations.md."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.mutation.mutant import Mutant
from tests.mutation.mutants import EQUIVALENT, FIRST_SURVIVORS, MUTANTS
from tests.mutation.trial import Outcome

AREAS = (
    ("NKI kernels", "adapters/nki/kernels/"),
    ("simulator", "adapters/nki/simulator/"),
    ("torch kernels and sampling", ""),
)
HEADER = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Written by `python -m tests.mutation`; do not edit. -->
# Seeded bugs, and the tests that notice them

Each bug below is put into a copy of the sources, one at a time, and the tests of its area run until
the first failure. A bug is *killed* when a test fails. The list was written before the tests were
run against it, and survivors stay on it: the table says what was done about each. The share of the
first run counts as survivors also those whose test existed but stood in a file that the list did
not name.

    .venv/bin/python -m tests.mutation                 # all, and write this page
    .venv/bin/python -m tests.mutation softmax norm-eps  # some, by the beginning of their id

The bugs are data in `tests/mutation/`. A fast test checks that each still finds its place in the
sources; the whole run takes several minutes and is not part of CI.

"""


def document(outcomes: dict[str, Outcome], sources: Path) -> str:
    """The page, from the outcome of every mutant.

    Args:
        outcomes: By id.
        sources: The folder ``src``.
    """
    lines = [HEADER + "| area | bugs | killed by the first run | killed now | equivalent |"]
    lines.append("|---|---|---|---|---|")
    taken: set[str] = set()
    for label, prefix in AREAS:
        mutants = [m for m in MUTANTS if m.id not in taken and m.file.startswith(prefix)]
        taken.update(m.id for m in mutants)
        lines.append(_counts(label, mutants, outcomes))
    lines += [_counts("all", MUTANTS, outcomes), ""]
    lines += ["| bug | place | what is wrong | first run | killed by |", "|---|---|---|---|---|"]
    lines += [_row(mutant, outcomes[mutant.id], sources) for mutant in MUTANTS]
    return "\n".join(lines) + "\n"


def _counts(label: str, mutants: Iterable[Mutant], outcomes: dict[str, Outcome]) -> str:
    ids = [mutant.id for mutant in mutants]
    killed = sum(outcomes[i].verdict == "killed" for i in ids)
    first = sum(i not in FIRST_SURVIVORS for i in ids)
    same = sum(i in EQUIVALENT for i in ids)
    return f"| {label} | {len(ids)} | {_share(first, ids)} | {_share(killed, ids)} | {same} |"


def _share(part: int, whole: list[str]) -> str:
    return f"{part} ({100 * part / len(whole):.0f} %)"


def _row(mutant: Mutant, outcome: Outcome, sources: Path) -> str:
    text = (sources / mutant.file).read_text(encoding="utf-8")
    place = f"`src/{mutant.file}:{mutant.line(text)}`"
    note = FIRST_SURVIVORS.get(mutant.id)
    first = "killed" if note is None else f"survived: {note}"
    if mutant.id in EQUIVALENT:
        by = f"equivalent: {EQUIVALENT[mutant.id]}"
    elif outcome.verdict == "killed":
        by = f"`{outcome.by.split('/')[-1]}`".replace("|", "\\|")
    else:
        by = f"**{outcome.verdict}**"
    return f"| {mutant.id} | {place} | {mutant.kind} | {first} | {by} |"
