# SPDX-License-Identifier: Apache-2.0
"""Programs compiled for one signature each, and kept on disk."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor

from trnport.adapters.inductor import cxx_flags, lowering
from trnport.adapters.inductor.calls import flatten
from trnport.adapters.inductor.identity import identity
from trnport.adapters.inductor.outputs import Outputs
from trnport.adapters.inductor.state import State, module_of
from trnport.core.errors import UnseenSignatureError
from trnport.core.known_call import KnownCall
from trnport.core.ports.compiler import Compiler, Origins, Program
from trnport.core.program_store import ProgramStore, StoredProgram
from trnport.core.program_table import ProgramTable, require_signature
from trnport.core.signature import signature_of
from trnport.toolchain import require_toolchain, target

log = structlog.get_logger(__name__)

_FORMAT = "2"
"""Changes with what is stored for a program."""


class InductorCompiler(Compiler):
    """Compiles whole programs for the host's CPU.

    The work is put off until a program's first call. A program takes the weights and caches of
    its module as inputs, so any number of programs share one set of them.

    Args:
        store: Keeps programs between starts and shares them between processes; None keeps
            nothing.

    Raises:
        ConfigError: There is no C++ compiler.
    """

    def __init__(self, store: ProgramStore | None = None) -> None:
        require_toolchain()
        self._store = store or _Forgetful()
        self._programs: ProgramTable[InductorProgram] = ProgramTable()
        self._states: dict[Any, State] = {}
        self.num_cached = 0
        self.num_compiled = 0
        self.seconds = 0.0

    @property
    def flags(self) -> str:
        """Inductor's options and what the C++ compiler is given besides."""
        options = [f"{name}={value}" for name, value in lowering.OPTIONS.items()]
        return ", ".join([*options, *(f"-{flag}" for flag in cxx_flags.FLAGS)])

    @property
    def origins(self) -> Origins:
        """Programs from the store, and those compiled."""
        return Origins(self.num_cached, self.num_compiled, self.seconds)

    def compile(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Program:
        """Promise a program; its first call compiles it or takes it from the store."""

        def make(signature: str) -> InductorProgram:
            return InductorProgram(self, name, function, signature)

        return self._programs.get_or_make(name, function, args, kwargs, make)

    def cache_key(
        self, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> str:
        """SHA-256 of the name, the signature, compilers, options and the processor."""
        return _digest(name, signature_of(args, kwargs), *self._environment())

    def seal(self) -> None:
        """Stop accepting new signatures, and say where the programs came from."""
        if not self._programs.sealed and (self.num_cached or self.num_compiled):
            log.info(self.summary())
        self._programs.sealed = True

    def summary(self) -> str:
        """Where the programs came from, as "12 programs from the cache, 0 compiled, 3.1 s"."""
        return (
            f"{self.num_cached} programs from the cache, {self.num_compiled} compiled, "
            f"{self.seconds:.1f} s"
        )

    def state_of(self, function: Callable[..., Any]) -> State:
        """Weights and caches of a function's module, one object for all of its programs."""
        module = module_of(function)
        if module not in self._states:
            self._states[module] = State(module)
        return self._states[module]

    def load(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[Callable[[list[Tensor]], list[Tensor]], Outputs]:
        """A program from the store, which is compiled if it is not there."""
        started = time.monotonic()
        state = self.state_of(function)
        traced: list[lowering.Traced] = []

        def graph() -> lowering.Traced:
            if not traced:
                traced.append(lowering.trace(function, args, kwargs, state))
            return traced[0]

        known = identity(function) or _digest(graph().graph.code)
        _, frame = flatten(args, kwargs)
        key = _digest(self.cache_key(name, args, kwargs), known, repr(frame), repr(state.forms()))

        def make(folder: Path) -> None:
            log.info("compiling", program=name, key=key[:12])
            lowering.compile_into(folder, graph())

        loaded, made = self._load(key, name, make)
        log.debug("program loaded", program=name, key=key[:12], from_cache=not made)
        self.num_compiled += made
        self.num_cached += not made
        self.seconds += time.monotonic() - started
        return loaded

    def _load(self, key: str, name: str, make: Callable[[Path], None]) -> tuple[Any, bool]:
        entry, made = self._store.find_or_make(key, name, make)
        try:
            return lowering.load(entry.folder), made
        except Exception as error:
            if made:
                raise
            log.warning("unusable in the cache, compiling again", program=name, error=str(error))
        self._store.discard(key)
        entry, _ = self._store.find_or_make(key, name, make)
        return lowering.load(entry.folder), True

    def _environment(self) -> tuple[str, ...]:
        # Inductor bakes the number of threads into its loops.
        return (_FORMAT, target(), self.flags, f"{torch.get_num_threads()} threads")


class InductorProgram:
    """One program. It accepts calls of its own signature only.

    Args:
        compiler: Makes the machine code at the first call.
        name: Name for messages.
        function: What it computes. Its arguments are read only; what it writes to are the
            caches of its module.
        signature: The signature it accepts.
    """

    def __init__(
        self, compiler: InductorCompiler, name: str, function: Callable[..., Any], signature: str
    ) -> None:
        self.name = name
        self.function = function
        self.signature = signature
        self._compiler = compiler
        self._known: KnownCall | None = None
        self._frame: list[Any] | None = None
        self._state = State(None)
        self._run: Callable[[list[Tensor]], list[Tensor]] | None = None
        self._outputs: Outputs | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises:
            UnseenSignatureError: The call has another signature than the program, or shares
                other objects between its arguments than the first call.
        """
        tensors = self._known.tensors(args, kwargs) if self._known else None
        if tensors is None:
            tensors = self._admit(args, kwargs)
        if self._run is None or self._outputs is None:
            return self.function(*args, **kwargs)  # without a tensor there is nothing to compile
        inputs = [*self._state.tensors(), *[tensor.contiguous() for tensor in tensors]]
        return self._outputs.fill(iter(self._run(inputs)))

    def _admit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Look closely at a call of a form not met before; the first one loads the program."""
        tensors, frame = flatten(args, kwargs)
        if frame != self._frame:
            require_signature(self, args, kwargs)
            if self._frame is not None:
                raise UnseenSignatureError(
                    f"program {self.name!r} was called with objects shared between its arguments "
                    "otherwise than when it was compiled; build every call the same way"
                )
            if tensors or module_of(self.function):
                self._state = self._compiler.state_of(self.function)
                self._run, self._outputs = self._compiler.load(
                    self.name, self.function, args, kwargs
                )
            self._frame = frame
        self._known = KnownCall(args, kwargs)
        return tensors


class _Forgetful:
    """A store that keeps programs for this process alone."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="trnport-programs-"))

    def find_or_make(
        self, key: str, name: str, make: Callable[[Path], None]
    ) -> tuple[StoredProgram, bool]:
        del name
        folder = self._folder / key
        folder.mkdir()
        make(folder)
        return _Folder(folder), True

    def discard(self, key: str) -> None:
        shutil.rmtree(self._folder / key, ignore_errors=True)

    def __del__(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class _Folder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
