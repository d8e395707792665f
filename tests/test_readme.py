# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the documentation runs, and its test functions pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(match.group(1), id=f"{document.name}-{number}")
    for document in DOCUMENTS
    for number, match in enumerate(BLOCK.finditer(document.read_text()), 1)
]


def test_there_are_blocks_to_run() -> None:
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("code", BLOCKS)
def test_block_runs(code: str) -> None:
    names: dict[str, object] = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert tests or "print(" in code, "a block should test or show something"
    for test in tests:
        assert callable(test)
        test()


def test_the_shell_commands_exist_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"\bmake ([a-z]+)", (ROOT / "README.md").read_text()))
    assert used
    assert used <= targets
