# SPDX-License-Identifier: Apache-2.0
"""From a function to machine code: trace it on fake tensors, compile, store, load."""

from __future__ import annotations

import pickle
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast
from unittest import mock

import attrs
import torch
from torch import Tensor
from torch._inductor import codecache, cpu_vec_isa, standalone_compile
from torch._inductor import config as inductor
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir
from torch._inductor.standalone_compile import AOTCompiledArtifact
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from trnport.adapters.inductor import cxx_flags, kernel_share, quicker
from trnport.adapters.inductor.calls import flatten, rebuild
from trnport.adapters.inductor.cut import cut
from trnport.adapters.inductor.direct import loaded
from trnport.adapters.inductor.once import compute_once
from trnport.adapters.inductor.outputs import Outputs
from trnport.adapters.inductor.state import State

OPTIONS: Mapping[str, Any] = MappingProxyType({"size_asserts": False})
"""Inductor's options; a part of every key. The inputs are checked once, by the program itself,
and not at each use."""

_PRECOMPILED_HEADERS = "cpp_cache_precompile_headers"
"""An option that makes compiling three times as fast."""

_PROGRAM, _OUTPUTS, _CODE = "program.bin", "outputs.pkl", "code"
_INSTRUCTIONS = "instructions"

# Inductor finds its files through an environment variable, so one thread at a time compiles.
_ONE_AT_A_TIME = threading.Lock()


@attrs.frozen
class Traced:
    """A function as a graph of operators over its state and its arguments' tensors."""

    graph: GraphModule
    outputs: Outputs


def trace(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], state: State
) -> Traced:
    """Run a function on fake tensors and record what it does.

    Raises:
        TypeError: It returns something that no program can.
        RuntimeError: It reads the value of a tensor, or a tensor that is neither an argument
            nor a weight or cache of its module.
    """
    own = state.tensors()
    found: list[Outputs] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        with state.replaced(tensors[: len(own)]):
            call = rebuild(args, kwargs, list(tensors[len(own) :]))
            returned = function(*call[0], **call[1])
        results: list[Tensor] = []
        found.append(Outputs.of(returned, results))
        return results

    tensors, _ = flatten(args, kwargs)
    with torch.inference_mode(False), torch.no_grad():
        with FakeTensorMode():
            fakes = [_like(tensor) for tensor in (*own, *(t.contiguous() for t in tensors))]
        graph = make_fx(flat, tracing_mode="fake")(*fakes)
    return Traced(graph, found[-1])


def compile_into(folder: Path, traced: Traced) -> None:
    """Compile a graph and store the program.

    Args:
        folder: Empty; gets the program and its machine code.
        traced: The graph.
    """
    _find_instruction_set()
    compute_once(traced.graph)
    graphs, plan = cut(traced.graph)
    with (
        _inductor_in(folder / _CODE),
        kernel_share.shared(),
        quicker.codegen(),
        quicker.buffers(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        parts = [_compiled(graph) for graph in graphs]
        isa = pick_vec_isa()
        (folder / _INSTRUCTIONS).write_bytes(pickle.dumps((str(isa), vars(isa))))
    (folder / _PROGRAM).write_bytes(pickle.dumps((plan, parts)))
    (folder / _OUTPUTS).write_bytes(pickle.dumps(traced.outputs))
    _drop_all_but_machine_code(folder / _CODE)


def load(folder: Path) -> tuple[Callable[[list[Tensor]], list[Tensor]], Outputs]:
    """Load a stored program.

    Args:
        folder: What :func:`compile_into` filled; inductor adds a few small files.
    """
    name, found_out = pickle.loads((folder / _INSTRUCTIONS).read_bytes())
    with (
        _inductor_in(folder / _CODE),
        _given_instructions(name, found_out),
        # The option is a part of inductor's file names. No header is wanted, though: machine code
        # that is missing is an error here, and never compiled unnoticed.
        inductor.patch({**OPTIONS, _PRECOMPILED_HEADERS: True}),
        mock.patch.object(codecache, "_precompile_header", return_value="none.h"),
    ):
        plan, parts = pickle.loads((folder / _PROGRAM).read_bytes())
        run = plan.runner([loaded(part) for part in parts])
    outputs = pickle.loads((folder / _OUTPUTS).read_bytes())
    return run, outputs


def _compiled(graph: GraphModule) -> bytes:
    with FakeTensorMode():
        inputs = [_like(n.meta["val"]) for n in graph.graph.nodes if n.op == "placeholder"]
    artifact = standalone_compile(
        graph,
        [*inputs],
        dynamic_shapes="from_graph",
        options={"config_patches": {**OPTIONS, _PRECOMPILED_HEADERS: True}},
        aot=True,
    )
    return cast("AOTCompiledArtifact", artifact).serialize()


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def _find_instruction_set() -> None:
    # By compiling probes, whose results inductor keeps in its own folder and in this process.
    with _ONE_AT_A_TIME:
        pick_vec_isa()


@contextmanager
def _given_instructions(name: str, found_out: dict[str, Any]) -> Iterator[None]:
    """Spare inductor the compilation of probes, seconds in each process: results are known."""
    known = [isa for isa in cpu_vec_isa.supported_vec_isa_list if str(isa) == name]
    if not known:
        yield
        return
    vars(known[0]).update(found_out)
    with mock.patch.object(cpu_vec_isa, "valid_vec_isa_list", return_value=known):
        yield


@contextmanager
def _inductor_in(folder: Path) -> Iterator[None]:
    with _ONE_AT_A_TIME, temporary_cache_dir(str(folder)), cxx_flags.given():
        yield


def _drop_all_but_machine_code(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.is_file() and path.suffix != ".so":
            path.unlink()
    shutil.rmtree(folder / "aotautograd", ignore_errors=True)
