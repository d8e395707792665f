# SPDX-License-Identifier: Apache-2.0
"""Run other people's kernels on the simulator: `nki` and its modules become the simulator's.

For a process of its own, never for the process that runs other tests: it writes to sys.modules.
The kernels come from a checkout that NKI_LIBRARY names; nothing of it is part of this repository.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
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
    sys.dont_write_bytecode = True  # a checkout is somebody else's directory
    nki = _module(
        "nki", dtype=str, jit=simulator.jit, simulate=simulator.simulate, isa=isa, language=language
    )
    nki.__path__ = []
    sys.modules["nki.isa"] = isa
    sys.modules["nki.language"] = language
    members = {name: getattr(isa, name) for name in isa.__all__}
    isa.constants = _module("nki.isa.constants", **members)  # type: ignore[attr-defined]
    typing = _module("nki.typing", tensor=_Subscript(), mutable_tensor=_Subscript())
    nki.typing = typing
    nki.collectives = _module("nki.collectives")
    old = _module("neuronxcc", __path__=[])
    old.nki = _module("neuronxcc.nki", typing=typing, __path__=[])
    sys.modules["neuronxcc.nki.typing"] = typing
    _module("neuron_dtypes")  # not public; the references import it for MX formats only
    # One reference looks a norm up in a table that belongs to the library's own tests.
    for name in ("test", "test.integration", "test.integration.nkilib"):
        _module(name, __path__=[])
    _module("test.integration.nkilib.utils", __path__=[])
    _module("test.integration.nkilib.utils.test_kernel_common", norm_name2func_torch=_Norms())


class _Norms:
    """The library's reference of a norm, by member of its `NormType`."""

    def __getitem__(self, kind: Any) -> Any:
        if kind.name == "NO_NORM":
            return lambda hidden, *_, **__: hidden
        file, function = (
            ("layernorm_torch", "layer_norm_torch_ref")
            if kind.name == "LAYER_NORM"
            else ("rmsnorm_torch", "rms_norm_torch_ref")
        )
        return getattr(importlib.import_module(f"nkilib.core.subkernels.{file}"), function)


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
    module = importlib.import_module(f"nkilib.{name}")
    _fill_forgotten_fields()
    return module


# A dataclass of the library declares a field that no call gives and nothing reads. Python's own
# dataclasses refuse that call, and so does a simulator that runs the kernel as Python.
_FORGOTTEN = {
    ("nkilib.core.mlp.mlp_tkg.mlp_tkg_constants", "MLPTKGConstantsDimensionSizes"): (
        "remainderIFused",
    ),
}


def _fill_forgotten_fields() -> None:
    for (place, name), fields in _FORGOTTEN.items():
        cls = getattr(sys.modules.get(place), name, None)
        if cls is not None and not hasattr(cls, "forgotten"):
            cls.forgotten = fields
            cls.__init__ = functools.partialmethod(cls.__init__, **dict.fromkeys(fields))


class _BarePackages:
    """Import hook: packages below `nkilib` are empty, their modules are not."""

    def __init__(self, library: Path) -> None:
        self.library = library

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return an empty package for a directory below `nkilib`, a module for a file."""
        if not name.startswith("nkilib."):
            return None
        place = self.library.joinpath(*name.split(".")[1:])
        if not place.is_dir():
            source = str(place.with_suffix(".py"))
            return importlib.util.spec_from_file_location(
                name, source, loader=_Loader(name, source)
            )
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec

    def create_module(self, spec: Any) -> None:
        """Use the default module."""

    def exec_module(self, module: Any) -> None:
        """Leave the package empty."""


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module; one whose docstring's end stands there twice is repaired in memory."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        """Compile the source, without the doubled text if it does not compile."""
        try:
            return super().source_to_code(data, path, _optimize=_optimize)
        except SyntaxError as error:
            repaired = without_doubled_text(data.decode(), error.lineno or 1)
            return super().source_to_code(repaired.encode(), path, _optimize=_optimize)


def without_doubled_text(source: str, line: int) -> str:
    """Blank the lines between two docstring ends around a line; line numbers stay.

    Args:
        source: A module's text.
        line: Line of the syntax error, from 1.
    """
    lines = source.split("\n")
    ends = [i for i, text in enumerate(lines) if text.strip() == '"""']
    before = max((i for i in ends if i < line - 1), default=None)
    after = min((i for i in ends if i >= line - 1), default=None)
    if before is None or after is None:
        return source
    return "\n".join("" if before < i <= after else text for i, text in enumerate(lines))
