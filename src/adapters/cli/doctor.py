# SPDX-License-Identifier: Apache-2.0
"""``trnport doctor``: what is installed, what works here, and whether serving would."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator

import attrs

from trnport.adapters.cli.adapters import Adapter, list_adapters
from trnport.adapters.cli.machine import Machine, inspect_machine
from trnport.adapters.cli.serving import Serving, inspect_serving
from trnport.adapters.cli.text import bullets, section, size

PACKAGES = (
    "trnport",
    "torch",
    "transformers",
    "safetensors",
    "vllm",
    "nki",
    "neuronx-cc",
    "torch-neuronx",
)


@attrs.frozen
class Diagnosis:
    """Everything that the command finds out.

    Attributes:
        versions: Package to version; None where it is not installed.
        machine: Cores, memory, devices.
        adapters: Adapters of all ports.
        serving: What vLLM would do.
    """

    versions: dict[str, str | None]
    machine: Machine
    adapters: list[Adapter]
    serving: Serving

    @property
    def serves_on_cpu(self) -> bool:
        """Whether ``vllm serve`` would start on the host's CPU."""
        return not self.serving.problems


def run_doctor(arguments: argparse.Namespace) -> int:
    """Print the diagnosis.

    Returns:
        0 when serving on CPU would work, else 1.
    """
    # Whatever the packages log while they are imported must not end up in the output.
    with contextlib.redirect_stdout(sys.stderr):
        diagnosis = diagnose()
    print(as_json(diagnosis) if arguments.json else render_diagnosis(diagnosis))
    return 0 if diagnosis.serves_on_cpu else 1


def diagnose() -> Diagnosis:
    """Look at the installation, the machine and the environment."""
    return Diagnosis(
        versions={"python": platform.python_version(), **{p: version_of(p) for p in PACKAGES}},
        machine=inspect_machine(),
        adapters=list_adapters(),
        serving=inspect_serving(os.environ),
    )


def version_of(package: str) -> str | None:
    """Version of an installed package; None when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def as_json(diagnosis: Diagnosis) -> str:
    """The diagnosis for programs."""
    found = {"serves_on_cpu": diagnosis.serves_on_cpu, **attrs.asdict(diagnosis)}
    return json.dumps(found, indent=2)


def render_diagnosis(diagnosis: Diagnosis) -> str:
    """The diagnosis for people."""
    verdict = "would work" if diagnosis.serves_on_cpu else "would not work"
    lines = [
        *section("Versions", _versions(diagnosis.versions)),
        *section("Machine", _machine(diagnosis.machine)),
        *section("Adapters", _adapters(diagnosis.adapters)),
        *section("vLLM plugin", _serving(diagnosis.serving)),
        *bullets("Warnings", diagnosis.serving.warnings),
        *bullets("Problems", diagnosis.serving.problems),
        f"Serving on CPU {verdict}.",
    ]
    return "\n".join(lines)


def _versions(versions: dict[str, str | None]) -> Iterator[tuple[str, str]]:
    return ((name, version or "not installed") for name, version in versions.items())


def _machine(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "CPU cores", str(machine.cores)
    yield "memory", f"{size(machine.memory_bytes)}, {size(machine.free_bytes)} of it free"
    yield "Neuron devices", ", ".join(machine.neuron_devices) or "none"


def _adapters(adapters: list[Adapter]) -> Iterator[tuple[str, str, str, str]]:
    for adapter in adapters:
        works = "yes" if adapter.available else "no"
        yield adapter.port, adapter.name, works, adapter.reason or adapter.note


def _serving(serving: Serving) -> Iterator[tuple[str, str]]:
    yield "entry points", ", ".join(serving.plugins) or "none registered"
    yield "active", f"{'yes' if serving.active else 'no'}: {serving.reason}"
    yield "metrics", serving.metrics
