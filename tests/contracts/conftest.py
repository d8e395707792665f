# SPDX-License-Identifier: Apache-2.0
"""The adapters that each contract suite runs against: a new adapter is one line here."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.adapters.native.packing import PackingKernels
from tests.contracts.processes import GlooWorld
from trnport import bootstrap
from trnport.adapters.eager import EagerCompiler
from trnport.adapters.fake import (
    FakeCollectives,
    PoisoningKernels,
    RecordingCompiler,
    RecordingKernels,
    StrictKVCacheStore,
)
from trnport.adapters.local import LocalWorld, SingleCollectives
from trnport.adapters.neuronx import NeuronxCompiler, interpret
from trnport.adapters.nki.adapter import NkiKernels
from trnport.adapters.paged import PagedKVCacheStore
from trnport.adapters.program_cache import ProgramCache
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.ports import Collectives, Compiler, Kernels, KVCacheStore


class World(Protocol):
    """All ranks of a group "tp" at once, whatever plays them.

    ``run`` calls a function on every rank and returns the results in rank order. The suite
    gives it module-level functions and partials of them, so that a rank may be a process.
    """

    size: int

    def run(self, function: Callable[[Collectives], Any]) -> list[Any]: ...


class InThisThread:
    """A world of one rank."""

    size = 1

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def run(self, function: Callable[[Collectives], Any]) -> list[Any]:
        return [function(self._collectives)]


NKI = NkiKernels(TorchCpuKernels(), strict=True)
"""Refuses what its kernels cannot take, so that no case passes on another adapter's result."""


def _native() -> Kernels:
    bootstrap.kernels("native")  # makes its operators known to torch
    return PackingKernels(TorchCpuKernels())


KERNELS: dict[str, Callable[[], Kernels]] = {
    "torch_cpu": TorchCpuKernels,
    "recording": lambda: RecordingKernels(TorchCpuKernels()),
    "poisoning": lambda: PoisoningKernels(TorchCpuKernels()),
    "nki": lambda: NKI,
    "native": _native,
}
# Sets that packages bring, such as CONTRACT_KERNELS="mine torch_cpu+mlp:mine".
KERNELS |= {
    spelling: partial(bootstrap.kernels, spelling)
    for spelling in os.environ.get("CONTRACT_KERNELS", "").split()
}
WORLDS: dict[str, Callable[[], World]] = {
    "single": lambda: InThisThread(SingleCollectives()),
    "fake": lambda: InThisThread(FakeCollectives()),
    "local1": lambda: LocalWorld(1),
    "local2": lambda: LocalWorld(2),
    "local3": lambda: LocalWorld(3),
    "local5": lambda: LocalWorld(5),
    "gloo2": cache(lambda: GlooWorld(2)),
    "gloo3": cache(lambda: GlooWorld(3)),
}
STORES: dict[str, Callable[[], KVCacheStore]] = {
    "paged": PagedKVCacheStore,
    "paged_nan": lambda: PagedKVCacheStore(fill=math.nan),
    "strict": StrictKVCacheStore,
}
COMPILERS: dict[str, Callable[[], Compiler]] = {
    "eager": EagerCompiler,
    "recording": lambda: RecordingCompiler(EagerCompiler()),
    "neuronx": lambda: NeuronxCompiler(lower=interpret),
}


@pytest.fixture(params=KERNELS, scope="session")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return KERNELS[request.param]()


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> KVCacheStore:
    return STORES[request.param]()


@pytest.fixture(params=[*COMPILERS, pytest.param("inductor", marks=pytest.mark.slow)])
def compiler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    if request.param == "inductor":
        return _inductor(tmp_path_factory.getbasetemp() / "programs")
    return COMPILERS[request.param]()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which calls of the suite ran on a kernel of ours."""
    report = NKI.coverage()
    if not report:
        return
    terminalreporter.section("operators of the contract on nki kernels, in the simulator")
    for operator, counts in report.items():
        elsewhere = sum(counts["fallback"].values())
        terminalreporter.line(f"{operator:30}{counts['nki']:6} on nki{elsewhere:6} elsewhere")


def _inductor(folder: Path) -> Compiler:
    from trnport.adapters.inductor import InductorCompiler

    # One store for the whole suite, since most tests call the same few programs.
    return InductorCompiler(ProgramCache(folder))
