# SPDX-License-Identifier: Apache-2.0
"""What this machine has of what the Neuron compiler needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from trnport.core.errors import ConfigError

PACKAGES = {"neuronx-cc": "neuronxcc", "torch-neuronx": "torch_neuronx"}
"""Distribution to module."""


def problem() -> str:
    """Why programs cannot be compiled for a Neuron device here, or "". Nothing is imported."""
    absent = [name for name, module in PACKAGES.items() if importlib.util.find_spec(module) is None]
    verb = "is" if len(absent) == 1 else "are"
    return f"{' and '.join(absent)} {verb} not installed" if absent else ""


def check_available() -> None:
    """Check that programs can be compiled for a Neuron device here.

    Raises:
        ConfigError: A package is missing; the message names it.
    """
    found = problem()
    if found:
        raise ConfigError(
            f"compiler='neuronx': {found}; install the Neuron SDK on this machine, or choose "
            "compiler='eager'"
        )


def versions() -> tuple[str, ...]:
    """Versions of the compiler's packages, for keys."""
    return tuple(f"{name}={_version(name)}" for name in (*PACKAGES, "nki"))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"
