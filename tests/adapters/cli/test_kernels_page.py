# SPDX-License-Identifier: Apache-2.0
"""The files and commands of docs/kernels.md, in order, as a reader would run them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.adapters.cli.test_roofline import CONFIG
from trnport.adapters.cli import main

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/kernels.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("bash") for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page says to save, as an installed package, and a small model at PATH."""
    for name, text in zip(("my_kernels", "test_my_kernels"), blocks("py"), strict=True):
        assert f"`{name}.py`" in PAGE
        (tmp_path / f"{name}.py").write_text(text)
    (project,) = blocks("toml")
    groups = tomllib.loads(project)["project"]["entry-points"]
    info = tmp_path / "my_kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kernels\nVersion: 1.0\n")
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "PATH").mkdir()
    (tmp_path / "PATH" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_kernels", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trnport(command: str) -> None:
    """In this process, and with a context that a test can wait for."""
    arguments = shlex.split(command.replace("--context 4096", "--context 64"))
    assert main(arguments[1:]) == 0, command


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("trnport ")])
def test_a_command_of_trnport_runs(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trnport(command)
    out = capsys.readouterr().out
    if "mine" in command and " list " in command:
        assert re.search(r"^ *rms_norm .*mine$", out, re.MULTILINE)
    if "mine" in command and " compare " in command:
        assert "kernel                      normalise" in out
    if "--plot" in command:
        assert (folder / "roofline.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if "pytest" in c])
def test_a_command_of_pytest_passes(folder: Path, command: str) -> None:
    variables, _, rest = command.rpartition("pytest ")
    given = dict(part.split("=", 1) for part in shlex.split(variables))
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    where = ROOT if "tests/" in rest else folder
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *shlex.split(rest)],
        cwd=where,
        env={**os.environ, **given, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d passed", done.stdout)


def test_every_command_of_the_page_is_run() -> None:
    assert len(COMMANDS) == 7
    assert all(c.startswith("trnport ") or "pytest" in c for c in COMMANDS)


def test_the_picture_is_small() -> None:
    (name,) = re.findall(r"!\[[^]]*\]\(([^)]*)\)", PAGE)
    assert 1000 < (ROOT / "docs" / name).stat().st_size < 60_000
