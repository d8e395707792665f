# SPDX-License-Identifier: Apache-2.0
"""Programs that Neuron's compiler makes of captured and rewritten graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.fx import GraphModule

from trnport.adapters.neuronx.capability import check_available, versions
from trnport.adapters.neuronx.capture import traced
from trnport.adapters.neuronx.lowering import (
    Lowering,
    aliased,
    neuron,
    shapes_only,
)
from trnport.adapters.neuronx.rewritten import Rewritten, rewrite
from trnport.core.errors import UnseenSignatureError
from trnport.core.ports.compiler import Compiler, Program
from trnport.core.program_table import CallCheck, ProgramTable
from trnport.core.signature import signature_of


@attrs.frozen
class Settings:
    """Everything that decides how a graph is compiled.

    Attributes:
        target: The platform, such as "trn2".
        device: Where tensors that a program makes itself are.
        compiler_flags: For neuronx-cc, in order.
        groups: Process group name to all groups beside it, as global ranks.
        replica_ranks: Global ranks of this replica; those in ``groups`` when None.
    """

    target: str = "trn2"
    device: str = "cpu"
    compiler_flags: tuple[str, ...] = ()
    groups: Mapping[str, Sequence[Sequence[int]]] = attrs.field(factory=dict)
    replica_ranks: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        """The part that is equal on all replicas, on one line."""
        return " ".join((f"--target={self.target}", *self.compiler_flags))


@attrs.define(eq=False)
class NeuronxProgram:
    """One function for one signature; traced and compiled when it is first called.

    Attributes:
        name: Name it was compiled under.
        signature: The signature it accepts.
        rewritten: The graph after the passes; None before the first call, and for a function
            without tensor operators.
        key: Key of the compiled graph, equal on all ranks and replicas that run it; None as
            long as ``rewritten`` is.
    """

    name: str
    signature: str
    _settings: Settings
    _build: Lowering
    _check: CallCheck = attrs.field(factory=CallCheck, init=False, repr=False)
    _call: Callable[..., Any] = attrs.field(init=False)
    _is_traced: bool = attrs.field(init=False, default=False)
    rewritten: Rewritten | None = attrs.field(init=False, default=None)
    key: str | None = attrs.field(init=False, default=None)

    def trace(self, function: Callable[..., Any]) -> None:
        """Say what the program runs; nothing happens yet."""
        self._call = traced(self.name, function, self._compile)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises:
            UnseenSignatureError: The call has another signature than the program, or the
                function looked at something else that has changed since it was traced.
            CompilationError: At the first call: the graph cannot be rewritten or compiled.
        """
        self._check.require(self, args, kwargs)
        return self._call(*args, **kwargs)

    def _compile(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if self._is_traced:
            raise UnseenSignatureError(
                f"program {self.name!r} would have to be traced again: something that its "
                "function reads and that is no argument has changed"
            )
        settings = self._settings
        self._is_traced = True
        self.rewritten = rewrite(
            self.name,
            gm,
            inputs,
            target_device=settings.device,
            groups=settings.groups,
            replica_ranks=settings.replica_ranks,
            kernel_config={"target": settings.target},
        )
        self.key = self.rewritten.key(torch.__version__, *versions(), settings.text)
        return self._build(self.rewritten, inputs)


class NeuronxCompiler(Compiler):
    """Captures whole programs as graphs, rewrites them and hands them to a lowering.

    Not yet run on hardware. What is tested is everything up to the lowering, with
    :func:`~trnport.adapters.neuronx.lowering.interpret` in the real one's place.

    Args:
        settings: How to compile.
        lower: What compiles a rewritten graph; torch-neuronx and neuronx-cc when None.
        compile_only: Trace and lower each program at its first call and run none: outputs are
            zeros and no buffer changes.

    Raises:
        ConfigError: ``lower`` is None and a package it needs is not installed.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        lower: Lowering | None = None,
        compile_only: bool = False,
    ) -> None:
        if lower is None:
            check_available()
        self._settings = settings or Settings()
        self._lower = lower or neuron
        self._compile_only = compile_only
        self._programs: ProgramTable[NeuronxProgram] = ProgramTable()

    @property
    def flags(self) -> str:
        """The target and the compiler's flags."""
        return self._settings.text

    @property
    def programs(self) -> tuple[NeuronxProgram, ...]:
        """Programs in order of compilation."""
        return tuple(self._programs)

    def compile(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Program:
        """Prepare a program; it is traced and compiled when it is first called."""

        def make(signature: str) -> NeuronxProgram:
            program = NeuronxProgram(name, signature, self._settings, self._build)
            program.trace(function)
            return program

        return self._programs.get_or_make(name, function, args, kwargs, make)

    def cache_key(
        self, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> str:
        """SHA-256 of name, signature, versions, target and flags.

        It is known before anything is traced. :attr:`NeuronxProgram.key` knows the graph, too.
        """
        known = (torch.__version__, *versions(), self._settings.text)
        parts = ("neuronx", *known, name, signature_of(args, kwargs))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def seal(self) -> None:
        """Stop accepting new signatures."""
        self._programs.sealed = True

    def _build(self, rewritten: Rewritten, inputs: Sequence[Any]) -> Callable[..., Any]:
        executable = self._lower(rewritten, inputs)
        return shapes_only(rewritten) if self._compile_only else aliased(rewritten, executable)
