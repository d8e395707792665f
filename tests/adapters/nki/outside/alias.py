# SPDX-License-Identifier: Apache-2.0
"""Run other people's kernels on the simulator: `nki` and its modules become the simulator's.

For a process of its own, never for the process that runs other tests: it writes to sys.modules.
The kernels come from a checkout that NKI_LIBRARY names; nothing of it is part of this repository.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

from trnport.adapters.nki import simulator
from trnport.adapters.nki.simulator import isa, language


def _module(name: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


def install() -> None:
    """Make `import nki` and its older spellings find the simulator."""
    nki = _module(
        "nki", dtype=str, jit=simulator.jit, simulate=simulator.simulate, isa=isa, language=language
    )
    nki.__path__ = []
    sys.modules["nki.isa"] = isa
    sys.modules["nki.language"] = language
    _module("nki.isa.constants", **{name: getattr(isa, name) for name in isa.__all__})
    typing = _module("nki.typing", tensor=_Subscript(), mutable_tensor=_Subscript())
    nki.typing = typing
    nki.collectives = _module("nki.collectives")
    old = _module("neuronxcc", __path__=[])
    old.nki = _module("neuronxcc.nki", typing=typing, __path__=[])
    sys.modules["neuronxcc.nki.typing"] = typing


class _Subscript:
    """`nt.tensor[...]` and `nt.tensor` in annotations."""

    def __getitem__(self, key: Any) -> _Subscript:
        return self


def kernel_module(library: Path, name: str) -> Any:
    """Import one module of a kernel library without running its packages' `__init__`.

    Args:
        library: Directory of the package `nkilib`.
        name: Dotted path below it, such as "core.embeddings.rope_hf".
    """
    parts = name.split(".")
    for depth in range(len(parts)):
        package = ".".join(["nkilib", *parts[:depth]])
        if package not in sys.modules:
            _module(package).__path__ = [str(library.joinpath(*parts[:depth]))]
    finder = _BarePackages(library)
    if not any(isinstance(found, _BarePackages) for found in sys.meta_path):
        sys.meta_path.insert(0, finder)
    return importlib.import_module(f"nkilib.{name}")


class _BarePackages:
    """Import hook: packages below `nkilib` are empty, their modules are not."""

    def __init__(self, library: Path) -> None:
        self.library = library

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return an empty package for a directory below `nkilib`."""
        if not name.startswith("nkilib."):
            return None
        place = self.library.joinpath(*name.split(".")[1:])
        if not place.is_dir():
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec

    def create_module(self, spec: Any) -> None:
        """Use the default module."""

    def exec_module(self, module: Any) -> None:
        """Leave the package empty."""
