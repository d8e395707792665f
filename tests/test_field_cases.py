# SPDX-License-Identifier: Apache-2.0
"""docs/field-cases.md: every case has its row, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "field-cases.md"
ROWS = re.findall(r"^\| ([A-Z]\d+) \|(.*)\|(.*)\|$", PAGE.read_text(), re.MULTILINE)
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text())))
NUMBERS = dict(zip("BCKPMOQGRSWI", (9, 4, 7, 8, 10, 3, 5, 7, 9, 6, 6, 8), strict=True))


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_named_test_exists(file: str, test: str) -> None:
    assert test.startswith("test_")
    assert test in functions(file)


def test_every_case_has_one_row() -> None:
    assert [case for case, *_ in ROWS] == [
        f"{group}{number}" for group, last in NUMBERS.items() for number in range(1, last + 1)
    ]


@pytest.mark.parametrize(("case", "short", "covered"), ROWS)
def test_a_case_is_covered_or_says_why_not(case: str, short: str, covered: str) -> None:
    assert short.strip()
    assert "::" in covered or re.search("(?i)not applicable because|open", covered), case


def test_nothing_but_tests_in_backticks_with_colons() -> None:
    assert len(NAMED) == len(set(re.findall(r"`([^`]*::[^`]*)`", PAGE.read_text())))
