# SPDX-License-Identifier: Apache-2.0
"""The built wheel is complete: it works in a fresh environment, away from the source tree."""

import configparser
import importlib.util
import json
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
#: Packages that modules may need and a given machine may lack.
OPTIONAL = ("vllm", "nki", "neuronxcc", "torch_neuronx", "libneuronxla", "gguf")

IMPORT_ALL = """
import importlib, json, sys
failures = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        missing = getattr(error, "name", None) or ""
        failures[name] = [missing.split(".")[0], f"{type(error).__name__}: {error}"]
import trnport
print(json.dumps({"file": trnport.__file__, "failures": failures}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy: a stale build/ folder must not lend the wheel a file."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=skipped)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out", "."]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (source / "out").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; its dependencies come from the running one."""
    directory = tmp_path_factory.mktemp("fresh")
    venv.create(directory, with_pip=False)
    executable = directory / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", executable, "install", "--quiet"]
    subprocess.run([*command, "--no-deps", "--no-index", wheel], check=True)
    # A path entry, unlike a site directory, leaves out .pth files: so not our editable install.
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return executable


def modules() -> list[str]:
    """Every module under src/, by its import name."""
    names = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        if path.stem != "__main__":
            parts = path.relative_to(ROOT / "src").with_suffix("").parts
            names.append(".".join(("trnport", *(part for part in parts if part != "__init__"))))
    return names


def test_every_module_imports_from_the_wheel(python: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [python, "-c", IMPORT_ALL, *modules()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert Path(report["file"]).is_relative_to(python.parents[1])
    absent = {name for name in OPTIONAL if importlib.util.find_spec(name) is None}
    real = {
        module: message
        for module, (missing, message) in report["failures"].items()
        if missing not in absent
    }
    assert real == {}


def test_wheel_carries_every_file(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"trnport/{path.relative_to(ROOT / 'src')}"
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and (path.suffix in {".py", ".md"} or path.name == "py.typed")
    }
    assert "trnport/py.typed" in expected
    assert expected - inside == set()
    assert not {name for name in inside if name.startswith(("tests", "src", "scripts"))}


def test_wheel_declares_its_entry_points(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    declared = configparser.ConfigParser()
    declared.read_string(archive.read(name).decode())
    assert {group: dict(declared[group]) for group in declared.sections()} == {
        "console_scripts": {"trnport": "trnport.adapters.cli:main"},
        "vllm.platform_plugins": {"trnport": "trnport.adapters.vllm:register"},
        "vllm.general_plugins": {"trnport_models": "trnport.adapters.vllm:register_models"},
    }


def test_wheel_names_its_licence_and_dependencies(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = archive.read(name).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    core = {
        line.split()[1].split(">")[0]
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    }
    assert core == {"attrs", "filelock", "safetensors", "structlog", "torch", "transformers"}
