# SPDX-License-Identifier: Apache-2.0
"""A kernel is compiled once, whichever program needs it first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch._inductor import codecache

from trnport.adapters.inductor import kernel_share


def test_a_kernel_is_compiled_once_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Path] = []

    def compile_all(lock_path: str, builders: Any) -> None:
        made = Path(builders[-1].get_target_file_path())
        if not made.exists():
            compiled.append(made)
            made.write_text("machine code")

    monkeypatch.setattr(codecache, "_worker_compile_cpp", compile_all)
    places = {}
    for program in ("one", "two"):
        (tmp_path / program).mkdir()
        for file in ("k.so", "header.gch"):
            places[program, file] = tmp_path / program / file
            builder = SimpleNamespace(get_target_file_path=lambda p=places[program, file]: str(p))
            with kernel_share.shared(tmp_path / "kernels"):
                codecache._worker_compile_cpp("", (builder,))
    # Inductor shares headers itself.
    del places["two", "k.so"]
    assert compiled == list(places.values())
    assert (tmp_path / "two/k.so").read_text() == "machine code"
    assert codecache._worker_compile_cpp is compile_all
    assert [p.name for p in (tmp_path / "kernels").iterdir() if p.suffix != ".lock"] == ["k.so"]
    assert (tmp_path / "kernels/k.so").stat().st_mode == (tmp_path / "one/k.so").stat().st_mode


def test_machines_that_compile_otherwise_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    here = kernel_share.folder()
    assert here == kernel_share.folder()
    monkeypatch.setattr(kernel_share, "target", lambda: "another compiler")
    assert kernel_share.folder() != here
