# SPDX-License-Identifier: Apache-2.0
"""The program cache on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnport.adapters.cli import main
from trnport.adapters.program_cache import ProgramCache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgramCache:
    monkeypatch.setenv("TRNPORT_CACHE_DIR", str(tmp_path))
    cache = ProgramCache(tmp_path)
    for key in ("first", "second"):
        cache.find_or_make(key, f"decode_{key}", lambda to: (to / "code").write_bytes(b"x" * 2048))
    return cache


def test_ls_tells_names_and_sizes(cache: ProgramCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{cache.folder}: 2 programs, 4.00 KiB\n")
    assert "decode_first" in shown
    assert shown.count("2.00 KiB") == 2


def test_an_empty_cache_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRNPORT_CACHE_DIR", str(tmp_path / "nothing"))
    for action in ("ls", "verify", "prune"):
        assert main(["cache", action]) == 0
    assert "0 programs" in capsys.readouterr().out


def test_verify_finds_damage_and_prune_removes_it(
    cache: ProgramCache, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "verify"]) == 0
    (cache.folder / "entries" / "first" / "code").write_bytes(b"y" * 2048)
    assert main(["cache", "verify"]) == 1
    assert "first: code differs" in capsys.readouterr().out
    assert main(["cache", "prune"]) == 0
    assert "removed 1 programs" in capsys.readouterr().out
    assert main(["cache", "verify"]) == 0


def test_prune_takes_limits(cache: ProgramCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "prune", "--max-age-days", "1", "--max-gib", "1"]) == 0
    assert len(cache.entries()) == 2
    assert main(["cache", "prune", "--max-gib", "0"]) == 0
    assert cache.entries() == []
    with pytest.raises(SystemExit):
        main(["cache", "prune", "--max-gib", "-1"])
    assert "-1 is not a number of at least 0" in capsys.readouterr().err
