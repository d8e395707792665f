# SPDX-License-Identifier: Apache-2.0
"""AWS's public kernels on the simulator, next to their own references.

Opt-in: TRNPORT_TEST_NKI_LIBRARY names a checkout of the library. docs/nki-library.md has the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.adapters.nki.outside.alias import without_doubled_text
from tests.adapters.nki.outside.run import error_of
from tests.adapters.nki.outside.table import ENVIRONMENT, RUNS, Run

_ROOT = Path(__file__).parents[4]
_CHECKOUT = os.environ.get(ENVIRONMENT)

needs_library = pytest.mark.skipif(
    not _CHECKOUT, reason=f"{ENVIRONMENT} does not name a checkout of nki-library"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Outcome per run, from one process in which `nki` is the simulator."""
    log = tmp_path_factory.mktemp("outside") / "log.txt"
    command = [sys.executable, "-m", "tests.adapters.nki.outside.run", str(_CHECKOUT)]
    with log.open("w") as errors:
        output = subprocess.run(
            command, cwd=_ROOT, check=True, stdout=subprocess.PIPE, stderr=errors, text=True
        ).stdout
    return {row["name"]: row for row in map(json.loads, output.splitlines())}


@needs_library
@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_public_kernel_agrees_with_its_reference(
    run: Run, results: dict[str, dict[str, Any]]
) -> None:
    result = results[run.name]
    assert result["failure"] is None
    assert result["error"] <= run.tolerance
    assert tuple(result["waived"]) == run.waived


def test_the_table_names_each_run_once() -> None:
    assert len({run.name for run in RUNS}) == len(RUNS)


def test_a_doubled_docstring_end_is_blanked_and_lines_stay() -> None:
    broken = '''def f():
    """Text.

    Notes.
    """

    Notes.
    """

    return 3
'''
    with pytest.raises(SyntaxError) as caught:
        compile(broken, "f.py", "exec")
    repaired = without_doubled_text(broken, caught.value.lineno or 0)
    names: dict[str, Any] = {}
    exec(compile(repaired, "f.py", "exec"), names)
    assert names["f"]() == 3
    assert repaired.count("\n") == broken.count("\n")


def test_the_error_is_relative_to_the_largest_value_and_never_nan() -> None:
    want = torch.tensor([1.0, -4.0])
    assert error_of({"out": (want + torch.tensor([0.0, 0.5]), want)}) == 0.125
    with pytest.raises(AssertionError, match="NaN"):
        error_of({"out": (want * float("nan"), want)})
    with pytest.raises(AssertionError, match="shape"):
        error_of({"out": (want[None], want)})
