# SPDX-License-Identifier: Apache-2.0
"""The C++ operators: compile them once for this machine, load them, tell torch their shapes."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor
from torch.utils import cpp_extension

from trnport.core.errors import CompilationError
from trnport.core.program_store import ProgramStore

log = structlog.get_logger(__name__)

NAMESPACE = "trnport_native"

_SOURCES = Path(__file__).parent / "csrc"
_LIBRARY = "native.so"
_OPTIONS = ("-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-fPIC")
_LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch")
_SHOWN = 2000
"""Characters of a compiler's complaint in a message."""


def load(store: ProgramStore, cxx: str, machine: str) -> None:
    """Make ``torch.ops.trnport_native`` available in this process; at once if it is already.

    Args:
        store: Keeps the library.
        cxx: The C++ compiler.
        machine: Compiler, torch and instruction set as a text, a part of the library's key.

    Raises:
        CompilationError: The compiler failed.
    """
    if hasattr(getattr(torch.ops, NAMESPACE), "linear"):
        return
    files = sorted(_SOURCES.iterdir())
    parts = [machine, *_flags(), *(f"{file.name}\n{file.read_text()}" for file in files)]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    stored, _ = store.find_or_make(key, "native-kernels", lambda folder: _compile(cxx, folder))
    torch.ops.load_library(str(stored.folder / _LIBRARY))
    _tell_shapes()


def _compile(cxx: str, folder: Path) -> None:
    started = time.monotonic()
    log.info("compiling C++ kernels", compiler=cxx)
    sources = sorted(_SOURCES.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    commands = [
        [cxx, *_flags(), *includes, "-c", str(source), "-o", str(target)]
        for source, target in zip(sources, objects, strict=True)
    ]
    with ThreadPoolExecutor() as pool:
        list(pool.map(_run, commands))
    link = [cxx, *_flags(), "-shared", *map(str, objects), "-o", str(folder / _LIBRARY)]
    link += [f"-L{path}" for path in cpp_extension.library_paths()]
    _run([*link, *_LIBRARIES])
    for file in objects:
        file.unlink()
    log.info("compiled C++ kernels", seconds=round(time.monotonic() - started, 1))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilationError(
            f"kernels='native': the C++ compiler failed ({' '.join(command)}):\n"
            f"{done.stderr[:_SHOWN]}\nSet CXX to g++ 11 or newer, or use kernels='torch_cpu'"
        )


def _flags() -> tuple[str, ...]:
    # torch's vectors are written for one width, which these two definitions choose.
    width = torch.backends.cpu.get_cpu_capability()
    return (*_OPTIONS, f"-DCPU_CAPABILITY={width}", f"-DCPU_CAPABILITY_{width}")


def _tell_shapes() -> None:
    shapes: dict[str, Callable[..., Any]] = {
        "pack": _packed,
        "linear": _product,
        "mlp": lambda x, *weights: _product(x, weights[2]),
        "pack_int8": _packed_int8,
        "linear_int8": _product,
        "mlp_int8": lambda x, *weights: _product(x, weights[2]),
        "decode_attention": _like_query,
        "prefill_attention": _like_query,
        "prefill_attention_with_prior": _like_query,
        "packed_prefill_attention": _like_query,
        "kv_write": lambda *_: None,
    }
    for name, shape in shapes.items():
        torch.library.register_fake(f"{NAMESPACE}::{name}", shape)


def _packed(weight: Tensor) -> Tensor:
    rows, columns = weight.shape
    return weight.new_empty(columns // 32, rows // 2, 32, 2)


def _packed_int8(weight: Tensor) -> Tensor:
    rows, columns = weight.shape
    return weight.new_empty(columns // 32, 4 * 32 + rows * 32, dtype=torch.int8)


def _product(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0] * 32)


def _like_query(q: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)
