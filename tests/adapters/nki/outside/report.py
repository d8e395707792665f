# SPDX-License-Identifier: Apache-2.0
"""The table of docs/nki-library.md, from results of `run`."""

from __future__ import annotations

from typing import Any

from tests.adapters.nki.outside.table import RUNS, Run

HEAD = (
    "| kernel | case | LNC | targets | rules | max error | limit | with float32 | seconds |",
    "|---|---|---|---|---|---|---|---|---|",
)


def markdown(results: list[dict[str, Any]]) -> str:
    """Return one line per case: the largest error and the longest run over its machines."""
    runs = {run.name: run for run in RUNS}
    cases: dict[tuple[str, str], list[tuple[Run, dict[str, Any]]]] = {}
    for result in results:
        run = runs[result["name"]]
        cases.setdefault((run.case.kernel, run.case.variant), []).append((run, result))
    return "\n".join([*HEAD, *(_line(pairs) for pairs in cases.values())])


def _line(pairs: list[tuple[Run, dict[str, Any]]]) -> str:
    case = pairs[0][0].case
    cells = [
        case.kernel,
        case.variant,
        ", ".join(sorted({str(run.lnc) for run, _ in pairs})),
        ", ".join(sorted({run.target for run, _ in pairs})),
        _rules(pairs),
        _worst([result for run, result in pairs if not run.precise]),
        f"{case.tolerance:.0e}" if case.tolerance else "0",
        _worst([result for run, result in pairs if run.precise]),
        f"{max(result['seconds'] for _, result in pairs):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _rules(pairs: list[tuple[Run, dict[str, Any]]]) -> str:
    """The rules that the case breaks, with the number of cores if it is not every one."""
    by_lnc = {run.lnc: result["waived"] for run, result in pairs}
    broken = sorted({rule for rules in by_lnc.values() for rule in rules})
    notes = []
    for rule in broken:
        lncs = [lnc for lnc, rules in by_lnc.items() if rule in rules]
        where = f" (LNC {lncs[0]})" if len(lncs) < len(by_lnc) else ""
        notes.append(f"{rule.removeprefix('NKI-')}{where}")
    return "strict" if not notes else "not " + ", ".join(notes)


def _worst(results: list[dict[str, Any]]) -> str:
    if not results:
        return "-"
    if any(result["error"] is None for result in results):
        return "failed"
    worst = max(result["error"] for result in results)
    return f"{worst:.1e}" if worst else "0"
