# SPDX-License-Identifier: Apache-2.0
"""Which adapters of each port this release has, and which of them work on this machine."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator

import attrs

from trnport.toolchain import cxx

NOT_IN_RELEASE = "not in this release"


@attrs.frozen
class Adapter:
    """One adapter of a port.

    Attributes:
        port: Name of the port.
        name: Name of the adapter, as in settings where it can be chosen.
        available: Whether it can be used here.
        reason: Why not; empty when it can.
        note: How it works here, when that is not obvious.
    """

    port: str
    name: str
    available: bool
    reason: str
    note: str = ""


def list_adapters() -> list[Adapter]:
    """Every adapter of every port, those to come included. Nothing heavy is imported."""
    return list(_adapters())


def nki_problem() -> str:
    """What is wrong with the installed nki, or ""; asked by capability.

    The package index has an empty package of that name, so being importable means nothing.
    """
    if importlib.util.find_spec("nki") is None:
        return "nki is not installed"
    try:
        module = importlib.import_module("nki")
    except Exception as error:  # noqa: BLE001  # a damaged SDK can raise anything
        return f"nki cannot be imported ({error})"
    if not hasattr(module, "simulate"):
        return "the installed nki is an empty package of that name, not the one of the Neuron SDK"
    return ""


def neuronx_problem() -> str:
    """What the Neuron compiler lacks, or ""."""
    absent = [
        name
        for name, module in (("neuronx-cc", "neuronxcc"), ("torch-neuronx", "torch_neuronx"))
        if importlib.util.find_spec(module) is None
    ]
    return _and(absent, "not installed")


def inductor_problem() -> str:
    """What PyTorch's compiler for CPUs and our own C++ lack, or ""."""
    if cxx() is not None:
        return ""
    return "there is no C++ compiler (g++ or clang++, or set CXX)"


def gloo_problem() -> str:
    """What collectives between processes lack, or ""."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch.distributed as dist

    return (
        "" if dist.is_available() and dist.is_gloo_available() else "torch was built without Gloo"
    )


def _packages(*names: str) -> Callable[[], str]:
    return lambda: _and(
        [name for name in names if importlib.util.find_spec(name) is None], "not installed"
    )


def _adapters() -> Iterator[Adapter]:
    torch = _packages("torch")
    yield _adapter("Kernels", "torch_cpu", torch)
    yield _adapter("Kernels", "native", inductor_problem)
    yield _adapter("Kernels", "native_int8", inductor_problem, package="native")
    yield _nki()
    yield _adapter("Collectives", "local", torch)
    yield _adapter("Collectives", "distributed", gloo_problem)
    yield _adapter("KVCacheStore", "paged", torch)
    yield _adapter("WeightSource", "safetensors", _packages("torch", "safetensors"))
    yield _adapter("WeightSource", "memory", torch)
    yield _adapter("Compiler", "eager", torch)
    yield _adapter("Compiler", "inductor", inductor_problem)
    yield _adapter("Compiler", "neuronx", neuronx_problem)
    yield _adapter("ProgramStore", "program_cache", _packages("filelock"))
    yield _adapter("all ports", "fake", torch)


def _nki() -> Adapter:
    """Our kernels, which need no Neuron SDK: without one they run in the simulator."""
    found = _adapter("Kernels", "nki", _packages("torch", "numpy", "ml_dtypes"))
    problem = nki_problem() if found.available else ""
    return attrs.evolve(found, note=f"in the simulator: {problem}" if problem else "")


def _adapter(port: str, name: str, find_problem: Callable[[], str], package: str = "") -> Adapter:
    problem = find_problem()
    exists = importlib.util.find_spec(f"trnport.adapters.{package or name}") is not None
    reasons = [] if exists else [NOT_IN_RELEASE]
    reasons += [problem] if problem else []
    return Adapter(port, name, not reasons, "; ".join(reasons))


def _and(names: list[str], what: str) -> str:
    verb = "is" if len(names) == 1 else "are"
    return f"{' and '.join(names)} {verb} {what}" if names else ""
