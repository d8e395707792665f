# SPDX-License-Identifier: Apache-2.0
"""One physical NeuronCore's state, and which core the running thread stands for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trnport.adapters.nki.simulator.targets import Target, target_named

if TYPE_CHECKING:
    from trnport.adapters.nki.simulator.counters import Counters
    from trnport.adapters.nki.simulator.ledger import Ledger


class Core:
    """State of one core during one launch.

    Attributes:
        index: Position in the logical core, 0 or 1.
        lnc: Physical cores of the launch.
        target: Hardware constants.
        precise: Floats are held as float32.
        strict: Relaxed rules are errors too.
        counters: What the core did.
        ledger: What is allocated in SBUF and PSUM.
        accumulators: Per-engine accumulators by engine name, owned by the instructions.
        loop_depth: Dynamic loops around the running instruction.
        no_reorder: Whether the code is inside `nl.no_reorder()`.
        exchange: Meeting point with the other core; None for one core.
        shared: Tensors in shared HBM by allocation order, common to both cores.
    """

    def __init__(
        self,
        target: Target,
        *,
        index: int = 0,
        lnc: int = 1,
        precise: bool = False,
        strict: bool = True,
        exchange: Any = None,
        shared: list[Any] | None = None,
    ) -> None:
        # Both modules need the current core, so they import this one.
        from trnport.adapters.nki.simulator.counters import Counters  # noqa: PLC0415
        from trnport.adapters.nki.simulator.ledger import Ledger  # noqa: PLC0415

        self.index = index
        self.lnc = lnc
        self.target = target
        self.precise = precise
        self.strict = strict
        self.counters: Counters = Counters()
        self.ledger: Ledger = Ledger(target, self.counters)
        self.accumulators: dict[str, Any] = {}
        self.loop_depth = 0
        self.no_reorder = False
        self.exchange = exchange
        self.shared: list[Any] = [] if shared is None else shared
        self.shared_count = 0
        self.constants: dict[Any, Any] = {}


class _Here(threading.local):
    core: Core | None = None


_here = _Here()


def current() -> Core:
    """Return the core that the running thread stands for.

    Raises:
        RuntimeError: No kernel is running in this thread.
    """
    core = _here.core
    if core is None:
        raise RuntimeError(
            "no kernel is running: call NKI functions from a kernel under simulate(kernel)(...), "
            "or inside `with machine.session():`"
        )
    return core


def current_or_none() -> Core | None:
    """Return the running thread's core, or None outside a kernel."""
    return _here.core


@contextlib.contextmanager
def running(core: Core) -> Iterator[Core]:
    """Let the running thread stand for `core`."""
    before, _here.core = _here.core, core
    try:
        yield core
    finally:
        _here.core = before


@contextlib.contextmanager
def session(target: str = "trn2", *, precise: bool = False, strict: bool = True) -> Iterator[Core]:
    """Open a core for direct calls, as tests of single instructions do.

    Args:
        target: "trn2" or "trn3".
        precise: Hold floats as float32.
        strict: Relaxed rules are errors too.
    """
    with running(Core(target_named(target), precise=precise, strict=strict)) as core:
        yield core
