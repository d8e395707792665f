# SPDX-License-Identifier: Apache-2.0
"""The list of seeded bugs fits the sources, and the tool tells a killed bug from a survivor."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from tests.mutation.mutant import Mutant
from tests.mutation.mutants import EQUIVALENT, FIRST_SURVIVORS, MUTANTS
from tests.mutation.trial import Copy

ROOT = Path(__file__).parents[2]
IDS = [mutant.id for mutant in MUTANTS]


@pytest.mark.parametrize("mutant", MUTANTS, ids=IDS)
def test_a_bug_finds_its_place(mutant: Mutant) -> None:
    source = (ROOT / "src" / mutant.file).read_text(encoding="utf-8")
    broken = mutant.applied(source)
    assert broken != source
    compile(broken, mutant.file, "exec")
    for argument in mutant.tests:
        assert argument.startswith(("-k", "not ", "torch_cpu")) or (ROOT / argument).is_file()


def test_the_report_lists_every_bug_once() -> None:
    text = (ROOT / "docs/mutations.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\S+) \| `src/", text, re.MULTILINE) == IDS
    assert len(set(IDS)) == len(IDS)
    assert set(EQUIVALENT) | set(FIRST_SURVIVORS) <= set(IDS)


def test_text_that_is_gone_or_ambiguous_is_refused() -> None:
    mutant = Mutant("x", "file.py", "a", "b", "kind", ())
    for source in ("", "aa"):
        with pytest.raises(ValueError, match=r"mutant x: old text occurs \d times in file.py"):
            mutant.applied(source)


@pytest.fixture
def toy(tmp_path: Path) -> Copy:
    """A repository of one function, with one test that needs it."""
    root, folder = tmp_path / "root", tmp_path / "copy"
    for path, text in {
        "src/__init__.py": "",
        "src/area.py": "def area(a, b):\n    return a * b\n",
        "tests/test_area.py": "from trnport.area import area\n\n\n"
        "import pytest\n\n\n@pytest.mark.parametrize('size', [2], ids=['two by two'])\n"
        "def test_area(size):\n    assert area(size, size) == 4\n\n\n"
        "def test_trnport_is_the_copy():\n    assert 'copy' in area.__code__.co_filename\n",
        "pyproject.toml": "",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    folder.mkdir()
    return Copy(root, folder)


def test_the_tool_tells_killed_from_survived_from_broken(toy: Copy) -> None:
    assert toy.run(("tests/test_area.py",), 60).verdict == "survived"  # and leaves compiled modules
    bug = Mutant("x", "area.py", "a * b", "a - b", "kind", ("tests/test_area.py",))
    outcome = toy.try_mutant(bug, 60)
    assert (outcome.verdict, outcome.by) == ("killed", "tests/test_area.py::test_area[two by two]")
    assert toy.try_mutant(attrs.evolve(bug, new="a + b"), 60).verdict == "survived"
    assert toy.try_mutant(attrs.evolve(bug, new="a *"), 60).verdict == "broken"
    assert toy.run(("tests/test_area.py",), 60).verdict == "survived"  # the bug is out again


def test_a_bug_of_the_list_is_killed(tmp_path: Path) -> None:
    mutant = next(m for m in MUTANTS if m.id == "search-duplicates")
    outcome = Copy(ROOT, tmp_path).try_mutant(mutant, 120)
    assert outcome.verdict == "killed"
    assert outcome.by.startswith("tests/adapters/nki/test_search.py::")
