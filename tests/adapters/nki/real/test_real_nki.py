# SPDX-License-Identifier: Apache-2.0
"""Our kernels and single instructions on the real `nki.simulate` and on our simulator.

Runs where the Neuron SDK's `nki` is installed: `pytest -m real_nki`. Elsewhere the same code runs
against a stand-in, our own simulator under the real names, which shows that it works and can fail.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.nki.real.table import difference, programs

_ROOT = Path(__file__).parents[4]
_STANDIN = Path(__file__).parent / "standin"


def _real_nki() -> bool:
    """Whether the installed `nki` simulates; PyPI's placeholder does not."""
    if importlib.util.find_spec("nki") is None:
        return False
    command = [sys.executable, "-c", "import nki; raise SystemExit(not hasattr(nki, 'simulate'))"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _play(side: str, place: Path, target: str, precise_fp: int, **variables: str) -> dict[str, Any]:
    environment = os.environ | variables | {
        "NEURON_PLATFORM_TARGET_OVERRIDE": target,
        "NKI_PRECISE_FP": str(precise_fp),
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.adapters.nki.real.play", side, str(place)]
    subprocess.run(command, cwd=_ROOT, check=True, env=environment, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def _differences(folder: Path, target: str, precise_fp: int, **variables: str) -> dict[str, str]:
    """How the two sides differ, by program and number of cores; empty text where they agree."""
    ours = _play("embedded", folder / "ours.json", target, precise_fp)
    theirs = _play("found", folder / "theirs.json", target, precise_fp, **variables)
    assert ours.keys() == theirs.keys()
    table = programs()
    tolerances = {name: table[name.rsplit(", lnc ", 1)[0]].tolerance for name in ours}
    return {name: difference(ours[name], theirs[name], tolerances[name]) for name in ours}


def _standin(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(_STANDIN), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, **variables}


@pytest.mark.real_nki
@pytest.mark.slow
@pytest.mark.skipif(not _real_nki(), reason="the Neuron SDK's nki with nki.simulate is missing")
@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("precise_fp", [0, 1])
def test_the_real_simulator_agrees(tmp_path: Path, target: str, precise_fp: int) -> None:
    found = _differences(tmp_path, target, precise_fp)
    assert {name: text for name, text in found.items() if text} == {}


@pytest.mark.slow
def test_the_harness_runs_against_a_stand_in(tmp_path: Path) -> None:
    found = _differences(tmp_path, "trn3", 1, **_standin())
    assert {name: text for name, text in found.items() if text} == {}
    assert sum(name.endswith("lnc 2") for name in found) > 100


@pytest.mark.slow
def test_a_wrong_stand_in_is_seen_in_every_program(tmp_path: Path) -> None:
    found = _differences(tmp_path, "trn2", 0, **_standin(NKI_STANDIN_FAULT="1"))
    assert {name: text for name, text in found.items() if not text.startswith("results[0]")} == {}


def _one(*values: float) -> dict[str, Any]:
    array = {"shape": [len(values)], "values": [str(x) for x in values]}
    return {"results": [array], "arguments": []}


def test_the_comparison_is_exact_unless_told_and_treats_nan_as_equal() -> None:
    nan = float("nan")
    assert not difference(_one(1.0, nan), _one(1.0, nan), 0.0)
    assert not difference(_one(100.0, 1.01), _one(100.0, 1.0), 1e-3)
    assert "element 1 is 1.01" in difference(_one(1.0, 1.01), _one(1.0, 1.0), 1e-3)
    assert "element 0" in difference(_one(nan), _one(1.0), 1.0)
    assert "shape" in difference(_one(1.0), _one(1.0, 1.0), 1.0)
    assert "ours: ran; theirs: ValueError" in difference(_one(1.0), {"raised": "ValueError: x"}, 1)
