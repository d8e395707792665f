# SPDX-License-Identifier: Apache-2.0
"""Rules about the source text that an import graph cannot see."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE = [*sorted((ROOT / "src/core").rglob("*.py")), *sorted((ROOT / "src/models").rglob("*.py"))]

#: What core and models may import besides the standard library and trnport itself.
THIRD_PARTY = {"torch", "attrs", "structlog"}
#: Attributes by which a pure module would reach a device, a process group, a file or the
#: environment although the import that brings them is allowed.
FORBIDDEN_NAMES = {
    "torch.compile",
    "torch.cuda",
    "torch.distributed",
    "torch.load",
    "torch.multiprocessing",
    "torch.neuron",
    "torch.save",
    "torch.xpu",
    "os.environ",
    "os.getenv",
    "open",
}


def offences(source: str) -> set[str]:
    """The forbidden names and packages that a pure module uses."""
    found = set()
    for name in used_names(ast.parse(source)):
        parts = name.split(".")
        prefixes = {".".join(parts[: end + 1]) for end in range(len(parts))}
        found |= prefixes & FORBIDDEN_NAMES
    for package in imported_packages(ast.parse(source)):
        if package not in THIRD_PARTY | {"trnport"} | sys.stdlib_module_names:
            found.add(package)
    return found


def used_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield dotted(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def imported_packages(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_core_and_models_are_pure(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch.distributed as dist", {"torch.distributed"}),
        ("from torch import distributed", {"torch.distributed"}),
        ("from torch.distributed import all_reduce", {"torch.distributed"}),
        ("import torch\ntorch.distributed.barrier()", {"torch.distributed"}),
        ("import torch\ntorch.cuda.synchronize()", {"torch.cuda"}),
        ("import torch\nf = torch.compile(f)", {"torch.compile"}),
        ("import torch\ntorch.load('weights.bin')", {"torch.load"}),
        ("import os\nos.environ['A'] = '1'", {"os.environ"}),
        ("from os import getenv", {"os.getenv"}),
        ("text = open('config.json').read()", {"open"}),
        ("import numpy as np", {"numpy"}),
        ("def f():\n    import vllm.envs", {"vllm"}),
        ("import math, attrs, structlog\nfrom torch import Tensor", set()),
        ("from trnport.core.kv.spec import KVSpec\nspec.torch.load()", set()),
    ],
)
def test_an_offence_is_found(source: str, found: set[str]) -> None:
    assert offences(source) == found


def test_every_source_file_names_its_licence() -> None:
    folders = ("src", "tests", "scripts", "benchmarks", "examples", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    files += [ROOT / name for name in ("Makefile", "pyproject.toml", "setup.py")]
    suffixes = {".py", ".sh", ".toml", ".yaml", ".yml"}
    sources = [
        path for path in files if path.suffix in suffixes or path.name in {"run", "Makefile"}
    ]
    assert len(sources) > 20
    unmarked = [
        str(path.relative_to(ROOT))
        for path in sources
        if path.is_file()
        and "SPDX-License-Identifier: Apache-2.0"
        not in "".join(path.read_text(encoding="utf-8").splitlines()[:2])
    ]
    assert unmarked == []


def test_every_package_has_an_init_file() -> None:
    """A folder without one would be left out of the wheel."""
    folders = {path.parent for path in (ROOT / "src").rglob("*.py")}
    assert [str(path) for path in folders if not (path / "__init__.py").is_file()] == []
