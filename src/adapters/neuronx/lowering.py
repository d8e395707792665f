# SPDX-License-Identifier: Apache-2.0
"""From a rewritten graph to something that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trnport.adapters.neuronx.capability import check_available
from trnport.adapters.neuronx.passes.replica_groups import restore_group_names
from trnport.adapters.neuronx.passes.values import storage_of, value_of
from trnport.adapters.neuronx.rewritten import Rewritten
from trnport.core.errors import CompilationError, ConfigError

Executable = Callable[..., Sequence[Any]]
"""Takes a graph's inputs, changes none of them, and returns all its outputs."""

Lowering = Callable[[Rewritten, Sequence[Any]], Executable]
"""Compiles a rewritten graph; gets examples of its inputs."""

BACKEND = "neuron"
"""Under this name torch-neuronx registers its compiler with torch.compile."""


def interpret(rewritten: Rewritten, inputs: Sequence[Any]) -> Executable:  # noqa: ARG001
    """Run the rewritten graph itself, operator by operator, wherever its inputs are."""
    restore_group_names(rewritten.gm, rewritten.group_names)
    return rewritten.gm.forward


def shapes_only(rewritten: Rewritten) -> Callable[..., tuple[Any, ...]]:
    """Compute nothing: outputs have the right shapes and hold zeros, buffers stay.

    For compiling ahead of time: warm-up goes through all programs without running one.
    """
    outputs = rewritten.gm.graph.output_node().args[0]
    own = list(outputs)[: rewritten.original_output_count]  # type: ignore[arg-type]

    def run(*_: Any) -> tuple[Any, ...]:
        return tuple(_zeros(value_of(x)) if isinstance(x, torch.fx.Node) else x for x in own)

    return run


def neuron(rewritten: Rewritten, inputs: Sequence[Any]) -> Executable:
    """Compile with torch-neuronx and neuronx-cc. Not yet run on hardware.

    Raises:
        ConfigError: They are not installed, or the installed ones bring no compiler.
        CompilationError: They fail.
    """
    check_available()
    # First, since it registers the compiler.
    import torch_neuronx  # noqa: F401, PLC0415

    try:
        compile_graph = torch._dynamo.lookup_backend(BACKEND)
    except torch._dynamo.exc.InvalidBackend:
        raise ConfigError(
            f"compiler='neuronx': the installed torch-neuronx registers no {BACKEND!r} backend "
            "for torch.compile; install the one of a current Neuron SDK"
        ) from None
    restore_group_names(rewritten.gm, rewritten.group_names)
    try:
        return compile_graph(rewritten.gm, list(inputs))
    except Exception as error:
        raise CompilationError(
            f"program {rewritten.name!r} was not compiled: {type(error).__name__}: {error}"
        ) from error


def aliased(rewritten: Rewritten, executable: Executable) -> Callable[..., tuple[Any, ...]]:
    """Put outputs where ``io_map`` says they belong, as the caller's own tensors.

    Args:
        rewritten: The graph.
        executable: What computes its outputs.

    Returns:
        A callable that behaves as the graph did before the passes.
    """

    def call(*inputs: Any) -> tuple[Any, ...]:
        outputs = list(executable(*inputs))
        _keep_from_buffers(outputs, inputs, rewritten.io_map)
        for output, number in rewritten.io_map.items():
            if outputs[output] is not inputs[number]:
                inputs[number].copy_(outputs[output])
                outputs[output] = inputs[number]
        return tuple(outputs[: rewritten.original_output_count])

    return call


def _keep_from_buffers(
    outputs: list[Any], inputs: Sequence[Any], io_map: Mapping[int, int]
) -> None:
    """Copy outputs that lie in a buffer which is about to get its new content."""
    buffers = {storage_of(inputs[number]) for number in io_map.values()}
    for i, output in enumerate(outputs):
        is_buffer = i in io_map and output is inputs[io_map[i]]
        if isinstance(output, Tensor) and not is_buffer and storage_of(output) in buffers:
            outputs[i] = output.clone()


def _zeros(value: Any) -> Any:
    return torch.zeros(value.shape, dtype=value.dtype) if isinstance(value, Tensor) else value
