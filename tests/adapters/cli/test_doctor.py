# SPDX-License-Identifier: Apache-2.0
"""The doctor asks capabilities, never names, and says what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trnport.adapters
from trnport import bootstrap
from trnport.adapters.cli import adapters, main, serving
from trnport.adapters.cli.machine import inspect_machine
from trnport.adapters.cli.text import section, size
from trnport.core.errors import ConfigError

GIB = 2**30
SOURCES = Path(__file__).parents[3] / "src"
SECOND_SETS = {"native_int8"}  # of the package "native"
DRIVING = {"cli", "vllm", "kernel_sets"}  # and the one that only finds adapters


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        *serving.KNOWN_VARIABLES,
        "VLLM_PLUGINS",
        "VLLM_TARGET_DEVICE",
        "VLLM_CPU_KVCACHE_SPACE",
        "PROMETHEUS_MULTIPROC_DIR",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with everything, whatever this one has."""
    hide(monkeypatch, found={*serving.REQUIRED})
    monkeypatch.setattr(serving, "registered_plugins", lambda: tuple(serving.PLUGINS))
    monkeypatch.setattr(bootstrap, "vllm_decision", lambda: (True, "it was asked for"))
    monkeypatch.setattr(bootstrap, "check_vllm_device", lambda: None)
    return monkeypatch


def hide(
    monkeypatch: pytest.MonkeyPatch, *absent: str, found: set[str] | frozenset[str] = frozenset()
) -> None:
    """Make packages look absent, or present."""
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        if name in found:
            return True
        return None if name in absent else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def doctor(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status = main(["doctor", "--json"])
    return status, json.loads(capsys.readouterr().out)


# --- whether serving would work -------------------------------------------------------------------


@pytest.mark.usefixtures("healthy")
def test_a_healthy_machine_serves(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = doctor(capsys)
    assert (status, found["serves_on_cpu"], found["serving"]["problems"]) == (0, True, [])
    assert found["serving"]["active"]
    assert found["serving"]["reason"] == "it was asked for"
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("Serving on CPU would work.\n")


@pytest.mark.parametrize("package", serving.REQUIRED)
def test_a_missing_package_is_a_problem_and_nobody_is_asked(
    healthy: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    hide(healthy, package)
    healthy.setattr(bootstrap, "vllm_decision", lambda: pytest.fail("asked"))
    status, found = doctor(capsys)
    (problem,) = found["serving"]["problems"]
    assert status == 1
    assert not found["serving"]["active"]
    assert problem.startswith(f"{package} is not installed; run `make setup`")


def test_unregistered_entry_points_are_a_problem(healthy: pytest.MonkeyPatch) -> None:
    healthy.setattr(serving, "registered_plugins", lambda: ("trnport",))
    found = serving.inspect_serving({})
    assert "entry points trnport_models;" in found.problems[0]
    assert not found.active


def test_an_inactive_plugin_is_a_problem_with_vllms_reason(healthy: pytest.MonkeyPatch) -> None:
    healthy.setattr(bootstrap, "vllm_decision", lambda: (False, "set TRNPORT_DEVICE=cpu"))
    found = serving.inspect_serving({})
    assert (found.active, found.reason) == (False, "set TRNPORT_DEVICE=cpu")
    assert found.problems == ("set TRNPORT_DEVICE=cpu",)


def test_an_active_plugin_that_would_refuse_is_a_problem(healthy: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConfigError("not on Neuron devices yet")

    healthy.setattr(bootstrap, "check_vllm_device", refuse)
    found = serving.inspect_serving({})
    assert (found.active, found.reason) == (True, "it was asked for")
    assert found.problems == ("not on Neuron devices yet",)


def test_a_damaged_package_is_reported_not_raised(healthy: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("libtorch.so: undefined symbol")

    healthy.setattr(bootstrap, "check_vllm_device", fail)
    (problem,) = serving.inspect_serving({}).problems
    assert "OSError: libtorch.so: undefined symbol; run `make setup` again" in problem


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"VLLM_PLUGINS": "trnport"}, "keeps vLLM from loading trnport_models;"),
        ({"VLLM_PLUGINS": ""}, "keeps vLLM from loading trnport, trnport_models;"),
        ({"VLLM_TARGET_DEVICE": "CPU"}, "ignore every platform plugin; unset it"),
    ],
)
@pytest.mark.usefixtures("healthy")
def test_variables_of_vllm_that_switch_the_plugin_off(
    environment: dict[str, str], message: str
) -> None:
    found = serving.inspect_serving(environment)
    assert message in found.problems[0]
    assert not found.active


@pytest.mark.usefixtures("healthy")
def test_variables_of_vllm_that_leave_it_on() -> None:
    environment = {"VLLM_PLUGINS": "other,trnport,trnport_models", "VLLM_TARGET_DEVICE": "empty"}
    assert serving.inspect_serving(environment).problems == ()


def test_another_platform_plugin_is_warned_about(healthy: pytest.MonkeyPatch) -> None:
    points = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(name, "a:b", "vllm.platform_plugins")
        for name in ("trnport", "neuron")
    )
    healthy.setattr(importlib.metadata, "entry_points", lambda group: points.select(group=group))
    (warning,) = serving.inspect_serving({}).warnings
    assert "installed: neuron." in warning
    assert warning.endswith("set VLLM_PLUGINS=trnport,trnport_models")
    assert not serving.inspect_serving({"VLLM_PLUGINS": "trnport,trnport_models"}).warnings


def test_our_entry_points_are_registered_here() -> None:
    assert serving.registered_plugins() == tuple(serving.PLUGINS)


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("device", "message"),
    [("neuron", "set TRNPORT_DEVICE=cpu"), ("gpu", "TRNPORT_DEVICE='gpu' is not a device")],
)
def test_the_real_platform_refuses_what_it_cannot_do(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    message: str,
) -> None:
    pytest.importorskip("vllm")
    monkeypatch.setenv("TRNPORT_DEVICE", device)
    assert main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert message in output
    assert output.endswith("Serving on CPU would not work.\n")


@pytest.mark.vllm
def test_the_real_platform_runs_on_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vllm")
    monkeypatch.setenv("TRNPORT_DEVICE", "cpu")
    status, found = doctor(capsys)
    assert status == 0, found["serving"]
    assert found["serving"]["reason"] == "TRNPORT_DEVICE=cpu"
    assert found["versions"]["vllm"] == importlib.metadata.version("vllm")


# --- metrics --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("healthy")
def test_metrics_go_to_a_folder_of_the_servers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/scratch")
    found = serving.inspect_serving({})
    assert found.metrics == "a folder of its own in /scratch, removed at the end"
    assert not found.problems


@pytest.mark.usefixtures("healthy")
def test_a_given_metrics_folder_has_to_be_there_and_empty(tmp_path: Path) -> None:
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    found = serving.inspect_serving(environment)
    assert str(tmp_path) in found.metrics
    assert (found.problems, found.warnings) == ((), ())
    (tmp_path / "counter_1.db").touch()
    assert "files of an earlier run" in serving.inspect_serving(environment).warnings[0]
    environment["PROMETHEUS_MULTIPROC_DIR"] += "/nowhere"
    assert "is not a writable directory" in serving.inspect_serving(environment).problems[0]


@pytest.mark.usefixtures("healthy")
def test_nowhere_to_put_metrics_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", fail)
    (problem,) = serving.inspect_serving({}).problems
    assert problem.endswith("['/tmp']; set TMPDIR to a writable directory")


# --- environment variables ------------------------------------------------------------------------


def test_a_misspelt_variable_is_warned_about() -> None:
    environment = {
        "TRNPORT_DEVCE": "cpu",
        "TRNPORT_DEVICE": "cpu",
        "TRNPORT_XYZXYZXYZXYZ": "1",
        "HOME": "/",
    }
    near, far = serving.unknown_variables(environment)
    assert near == "TRNPORT_DEVCE is set and nothing reads it; did you mean TRNPORT_DEVICE?"
    known = ", ".join(serving.KNOWN_VARIABLES)
    assert far == f"TRNPORT_XYZXYZXYZXYZ is set and nothing reads it; known: {known}"


def test_known_variables_are_those_in_the_sources() -> None:
    others = (p for p in SOURCES.rglob("*.py") if p.name != "serving.py")
    named = {name for p in others for name in re.findall(r"TRNPORT_[A-Z][A-Z_]*", p.read_text())}
    assert named == set(serving.KNOWN_VARIABLES)


# --- adapters -------------------------------------------------------------------------------------


def test_every_adapter_of_this_release_is_listed() -> None:
    packages = {module.name for module in pkgutil.iter_modules(trnport.adapters.__path__)}
    listed = {a.name for a in adapters.list_adapters() if "not in this release" not in a.reason}
    assert listed - SECOND_SETS == packages - DRIVING
    assert listed >= SECOND_SETS


@pytest.mark.parametrize(
    ("port", "choose"), [("Kernels", bootstrap.kernels), ("Compiler", bootstrap.compiler)]
)
def test_the_settings_offer_what_is_in_this_release(
    port: str, choose: Callable[[str], object]
) -> None:
    for adapter in adapters.list_adapters():
        if adapter.port != port:
            continue
        if adapter.available:
            choose(adapter.name)
        elif adapters.NOT_IN_RELEASE in adapter.reason:
            with pytest.raises(ConfigError, match="not available"):
                choose(adapter.name)
        else:
            with pytest.raises(ConfigError, match=re.escape(adapter.reason)):
                choose(adapter.name)


def test_an_adapter_is_available_or_says_why_not() -> None:
    assert all(a.available is (not a.reason) for a in adapters.list_adapters())


@pytest.fixture
def install_nki(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Install a package called nki for one test."""

    def install(source: str) -> None:
        (tmp_path / "nki").mkdir()
        (tmp_path / "nki/__init__.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "nki", raising=False)

    yield install
    sys.modules.pop("nki", None)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "empty package"),
        ("raise RuntimeError('no driver')", "cannot be imported (no driver)"),
        ("def simulate(): ...", ""),
    ],
)
def test_nki_is_told_from_its_namesake_by_what_it_can_do(
    install_nki: Callable[[str], None], source: str, problem: str
) -> None:
    install_nki(source)
    found = adapters.nki_problem()
    assert problem in found
    assert bool(problem) is bool(found)


def test_absent_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "nki", "neuronxcc", "torch_neuronx", "torch")
    assert adapters.nki_problem() == "nki is not installed"
    assert adapters.neuronx_problem() == "neuronx-cc and torch-neuronx are not installed"
    assert adapters.gloo_problem() == "torch is not installed"
    reasons = {a.name: a.reason for a in adapters.list_adapters()}
    assert reasons["eager"] == "torch is not installed"
    assert reasons["neuronx"] == "neuronx-cc and torch-neuronx are not installed"


def test_a_cpp_compiler_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "no C++ compiler" in adapters.inductor_problem()
    (tmp_path / "my-cxx").write_text("#!/bin/sh\n")
    (tmp_path / "my-cxx").chmod(0o755)
    monkeypatch.setenv("CXX", "my-cxx -O2")
    assert adapters.inductor_problem() == ""


# --- the machine ----------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 8 GiB, 6 of them free, and one Neuron device."""
    write(tmp_path, "proc/meminfo", f"MemTotal: {8 * 2**20} kB\nMemAvailable: {6 * 2**20} kB\n")
    write(tmp_path, "dev/neuron0", "")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


V1, V2 = "sys/fs/cgroup/memory/memory.", "sys/fs/cgroup/memory."


@pytest.mark.parametrize(
    ("files", "total", "free"),
    [
        ({}, 8, 6),
        ({V2 + "max": "max\n", V2 + "current": "5\n"}, 8, 6),
        ({V2 + "max": f"{4 * GIB}\n", V2 + "current": f"{GIB}\n"}, 4, 3),
        ({V2 + "max": f"{7 * GIB}\n", V2 + "current": "0\n"}, 7, 6),
        ({V2 + "max": f"{4 * GIB}\n", V2 + "current": f"{5 * GIB}\n"}, 4, 0),
        ({V1 + "limit_in_bytes": f"{2 * GIB}", V1 + "usage_in_bytes": f"{GIB}"}, 2, 1),
        ({V1 + "limit_in_bytes": f"{2**63 - 4096}"}, 8, 6),
    ],
)
def test_a_containers_limit_counts_as_the_machines(
    root: Path, files: dict[str, str], total: int, free: int
) -> None:
    for name, text in files.items():
        write(root, name, text)
    machine = inspect_machine(root)
    assert (machine.memory_bytes, machine.free_bytes) == (total * GIB, free * GIB)
    assert machine.neuron_devices == ("/dev/neuron0",)


@pytest.mark.vllm
def test_memory_is_what_the_worker_sees() -> None:
    pytest.importorskip("vllm")
    from trnport.adapters.vllm.memory import host_memory

    assert inspect_machine().memory_bytes == host_memory().total


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (2**20, "1.00 MiB"), (5 * GIB, "5.00 GiB")],
)
def test_sizes_have_a_unit(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


def test_columns_are_aligned_without_trailing_blanks() -> None:
    lines = list(section("Title", [("a", "long one", ""), ("bcd", "e", "f")]))
    assert lines == ["Title", "  a    long one", "  bcd  e         f", ""]


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys\nfrom trnport.adapters.cli.parser import build_parser\nbuild_parser()\n"
        "assert not {'torch', 'vllm', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
