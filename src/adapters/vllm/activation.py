# SPDX-License-Identifier: Apache-2.0
"""Whether vLLM should run on this platform, and why."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import attrs

from trnport.adapters.vllm.env import Environment, read_environment
from trnport.core.errors import ConfigError

VLLM_LINE = "0.33"
"""The vLLM release line this adapter is written for; vLLM gives plugins no stable interface."""


@attrs.frozen
class Decision:
    """Whether the platform is active, and the reason, a clause for a log line."""

    active: bool
    reason: str


@attrs.frozen
class Machine:
    """What the decision depends on, beside the environment.

    Attributes:
        vllm_version: Version of the installed vLLM.
        has_neuron_device: Whether a /dev/neuron* node exists.
        vllm_has_kernels: Whether vLLM was built for some device.
    """

    vllm_version: str
    has_neuron_device: bool
    vllm_has_kernels: bool


def decide(environment: Environment | None = None, machine: Machine | None = None) -> Decision:
    """Decide from the environment and the machine; both are looked up when None."""
    machine = machine or inspect_machine()
    if not is_supported_version(machine.vllm_version):
        return Decision(False, version_message(machine.vllm_version))
    try:
        environment = environment or read_environment()
    except ConfigError as error:
        # vLLM swallows what this raises and would serve on some other device, so the platform
        # is activated and refuses the configuration itself, with the same message.
        return Decision(True, str(error))
    if environment.device:
        return Decision(True, f"TRNPORT_DEVICE={environment.device}")
    if machine.has_neuron_device:
        return Decision(True, "a Neuron device was found (/dev/neuron*)")
    if not machine.vllm_has_kernels:
        return Decision(True, "vLLM was built without a device of its own")
    return Decision(
        False,
        "there is no Neuron device and vLLM was built for another one; set TRNPORT_DEVICE=cpu to "
        "run trnport on the host's CPU",
    )


def inspect_machine() -> Machine:
    """Look at the installed vLLM and at /dev."""
    return Machine(
        vllm_version=importlib.metadata.version("vllm"),
        has_neuron_device=neuron_device_exists(),
        vllm_has_kernels=_vllm_has_kernels(),
    )


def neuron_device_exists() -> bool:
    """Whether the kernel driver has created a device node; the node is not opened."""
    return any(Path("/dev").glob("neuron*"))


def is_supported_version(version: str) -> bool:
    """Whether a vLLM version belongs to the supported line, local builds included."""
    return re.match(rf"{re.escape(VLLM_LINE)}(\D|$)", version) is not None


def version_message(version: str) -> str:
    """What to do about an unsupported vLLM."""
    return (
        f"vLLM {version} is installed and this trnport needs vLLM {VLLM_LINE}.x; install it, or "
        "the trnport release whose version starts with that of your vLLM"
    )


def _vllm_has_kernels() -> bool:
    # Builds name their extension after the device (_C, _rocm_C, _C_AVX2, _C_stable_libtorch),
    # and the empty build has none of them.
    spec = importlib.util.find_spec("vllm")
    folders = (spec.submodule_search_locations or []) if spec else []
    return any(file for folder in folders for file in Path(folder).glob("_*C*.so"))
