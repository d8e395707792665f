# SPDX-License-Identifier: Apache-2.0
"""Accumulators of the scalar and the vector engine: one fp32 value per lane.

Nobody documents what they hold at the start, nor after a vector instruction that ran with `idle`:
they hold NaN then, and a strict launch refuses to use them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.alu import Op
from trnport.adapters.nki.simulator.isa.enums import reduce_cmd as Command
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.targets import PARTITIONS
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["Lanes", "accumulate", "command", "lanes", "poison", "reduced"]

Float = npt.NDArray[np.float32]

_IDENTITY = {
    "add": 0.0,
    "subtract": 0.0,
    "multiply": 1.0,
    "maximum": -np.inf,
    "minimum": np.inf,
    "abs_max": 0.0,
    "abs_min": np.inf,
}


class Lanes:
    """Accumulators of some lanes; the arrays are views of the core's state.

    Attributes:
        values: float32 [P].
        defined: bool [P], whether an instruction initialized the lane.
    """

    __slots__ = ("defined", "values")

    def __init__(self, values: Float, defined: npt.NDArray[np.bool_]) -> None:
        self.values = values
        self.defined = defined

    def require_defined(self, instruction: str) -> None:
        """Refuse lanes that nothing initialized; they hold NaN in a launch that is not strict."""
        if not self.defined.all():
            value = f"undefined in {int((~self.defined).sum())} lanes"
            limit = "reset_reduce, or load_reduce, on these partitions first"
            violation("NKI-ACCUMULATOR", instruction, "accumulators", value, limit)

    def column(self, instruction: str) -> Float:
        """The values to write to `reduce_res`, [P, 1]."""
        self.require_defined(instruction)
        return self.values.reshape(-1, 1).copy()

    def set(self, values: Any) -> None:
        """Initialize the lanes with values that broadcast to [P]."""
        self.values[...] = values
        self.defined[...] = True


def command(instruction: str, given: Any, allowed: tuple[str, ...]) -> str:
    """The name of an accumulator command.

    Raises:
        RuleViolationError: The instruction has no such command.
    """
    if not isinstance(given, Command) or given.name not in allowed:
        shown = given.name if isinstance(given, Command) else repr(given)
        violation("NKI-REDUCE-CMD", instruction, "reduce_cmd", shown, ", ".join(allowed))
    return str(given.name)


def lanes(engine: str, data: NkiTensor) -> Lanes:
    """The accumulators behind a tile's partitions.

    Args:
        engine: "vector" or "scalar".
        data: The tile that is reduced.
    """
    state = machine.current().accumulators
    held = state.get(engine)
    if held is None:
        held = poison(engine)
    start = data.start_partition
    stop = start + data.shape[0]
    return Lanes(held.values[start:stop], held.defined[start:stop])


def poison(engine: str) -> Lanes:
    """Make every accumulator of an engine undefined."""
    fresh = Lanes(np.full(PARTITIONS, np.nan, np.float32), np.zeros(PARTITIONS, np.bool_))
    machine.current().accumulators[engine] = fresh
    return fresh


def accumulate(
    instruction: str, cmd: str, op: Op, held: Lanes, values: Float, init: Any = None
) -> None:
    """Run an accumulator command.

    Args:
        instruction: Named in messages.
        cmd: Result of `command`, not "idle".
        op: The reduction.
        held: Result of `lanes`; changed in place.
        values: fp32 [P, F...], what the instruction computed.
        init: Scalar or [P, 1...]; for "load_reduce".
    """
    if cmd == "load_reduce":
        held.set(np.asarray(init, np.float32).reshape(-1))
    elif cmd in {"reset", "reset_reduce"}:
        held.set(np.float32(_IDENTITY[op.name]))
    else:
        held.require_defined(instruction)
    if cmd != "reset":
        held.values[...] = op.function(reduced(op, values), held.values)


def reduced(op: Op, values: Float) -> Float:
    """Reduce over all free elements to [P]; magnitude operators have no ufunc."""
    flat = values.reshape(len(values), -1)
    if op.reducer is not None:
        return op.reducer.reduce(flat, axis=1)
    size = np.abs(flat)
    index = np.argmax(size, 1) if op.name == "abs_max" else np.argmin(size, 1)
    return flat[np.arange(len(flat)), index]
