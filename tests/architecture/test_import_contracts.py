# SPDX-License-Identifier: Apache-2.0
"""The import contracts hold on the tree, and each of them fails when it is violated."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "pyproject.toml"
CONTRACTS = [
    contract["name"]
    for contract in tomllib.loads(CONFIG.read_text())["tool"]["importlinter"]["contracts"]
]

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as run; run()"

CORE_PURE = "core imports no backend and touches no machine"
CORE_ALONE = "core imports nothing else of ours"
MODELS_PURE = "models import no backend and touch no machine"
MODELS_CORE = "models import nothing of ours but core"
INDEPENDENT = "adapters are independent of each other"
MODELS_PROTECTED = "only driving adapters and bootstrap import models"
BOOTSTRAP_PROTECTED = "only driving adapters import bootstrap"
VLLM_PROTECTED = "only driving adapters import vllm"

# (package that gets the import, the import, every contract it breaks)
VIOLATIONS = [
    ("core.engine", "import vllm", {CORE_PURE, VLLM_PROTECTED}),
    ("core.engine", "from transformers import AutoConfig", {CORE_PURE}),
    ("core.ports", "import safetensors.torch", {CORE_PURE}),
    ("core", "import nki.language", {CORE_PURE}),
    ("core.parallel", "import torch_neuronx", {CORE_PURE}),
    ("core.kv", "def f() -> None:\n    from os import environ", {CORE_PURE}),
    ("core.kv", "import trnport.adapters.fake", {CORE_ALONE}),
    ("core", "import trnport.models", {CORE_ALONE, MODELS_PROTECTED}),
    ("core", "import trnport.bootstrap", {CORE_ALONE, BOOTSTRAP_PROTECTED}),
    ("models", "import os", {MODELS_PURE}),
    ("models", "import safetensors", {MODELS_PURE}),
    ("models", "import trnport.adapters.torch_cpu", {MODELS_CORE}),
    ("models", "import trnport.bootstrap", {MODELS_CORE, BOOTSTRAP_PROTECTED}),
    ("adapters.torch_cpu", "import trnport.adapters.local", {INDEPENDENT}),
    ("adapters.local", "import trnport.adapters.vllm", {INDEPENDENT}),
    ("adapters.cli", "import trnport.adapters.vllm", {INDEPENDENT}),
    ("adapters.fake", "import trnport.models", {MODELS_PROTECTED}),
    ("adapters.paged", "import vllm", {VLLM_PROTECTED}),
]
# Not violations: what the driving adapters and the composition root are for.
ALLOWED = [
    ("adapters.vllm", "import trnport.bootstrap, trnport.models, vllm"),
    ("adapters.cli", "import trnport.bootstrap, trnport.models"),
    ("bootstrap", "import trnport.models, trnport.adapters.torch_cpu, trnport.adapters.local"),
    ("models", "import trnport.core, torch, attrs, structlog"),
]
NEEDED = sorted({module for module, *_ in [*VIOLATIONS, *ALLOWED]})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package in which every module named above exists."""
    package = tmp_path / "trnport"
    shutil.copytree(ROOT / "src", package, ignore=shutil.ignore_patterns("__pycache__"))
    for module in NEEDED:
        path = module_file(package, module)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    # A protected package has to be imported somewhere for import-linter to accept the contract.
    inject(tmp_path, "adapters.vllm", "import vllm")
    return tmp_path


def inject(tree: Path, module: str, statement: str) -> None:
    """Add the import in a file nobody else imports, so that it breaks only its own contract."""
    file = module_file(tree / "trnport", module)
    with (file if module == "bootstrap" else file.with_name("_injected.py")).open("a") as stream:
        stream.write(f"\n{statement}\n")


def module_file(package: Path, module: str) -> Path:
    path = package.joinpath(*module.split("."))
    return path.with_suffix(".py") if module == "bootstrap" else path / "__init__.py"


def broken_contracts(directory: Path) -> set[str]:
    """Run lint-imports on the package in `directory` and return the contracts it calls broken."""
    result = subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS, "--no-cache", "--no-logo", CONFIG],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    output = result.stdout + result.stderr
    verdicts = {name: verdict(output, name) for name in CONTRACTS}
    broken = {name for name, word in verdicts.items() if word == "BROKEN"}
    assert set(verdicts.values()) <= {"KEPT", "BROKEN"}, output
    assert (result.returncode != 0) == bool(broken), output
    return broken


def case_name(value: object) -> str:
    return value.split("\n")[-1].strip() if isinstance(value, str) else "breaks"


def verdict(output: str, name: str) -> str:
    lines = [line.removeprefix(name) for line in output.splitlines() if line.startswith(name)]
    return lines[0].split()[0] if lines else "MISSING"


def test_contracts_hold_on_the_tree(tmp_path: Path) -> None:
    (tmp_path / "trnport").symlink_to(ROOT / "src", target_is_directory=True)
    assert broken_contracts(tmp_path) == set()


def test_every_contract_has_a_violation() -> None:
    assert set(CONTRACTS) == set().union(*(broken for *_, broken in VIOLATIONS))


@pytest.mark.parametrize(("module", "statement", "broken"), VIOLATIONS, ids=case_name)
def test_violation_breaks_its_contract(
    tree: Path, module: str, statement: str, broken: set[str]
) -> None:
    inject(tree, module, statement)
    assert broken_contracts(tree) == broken


@pytest.mark.parametrize(("module", "statement"), ALLOWED, ids=case_name)
def test_allowed_import_breaks_nothing(tree: Path, module: str, statement: str) -> None:
    inject(tree, module, statement)
    assert broken_contracts(tree) == set()


def test_core_is_light_to_import() -> None:
    code = (
        "import trnport.core, trnport.models, sys; "
        "heavy = {'vllm', 'safetensors', 'transformers'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
