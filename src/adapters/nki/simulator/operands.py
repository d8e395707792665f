# SPDX-License-Identifier: Apache-2.0
"""Operand checks and conversions that compute instructions share."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import check
from trnport.adapters.nki.simulator.access import operand, read
from trnport.adapters.nki.simulator.alu import Array
from trnport.adapters.nki.simulator.handles import VirtualRegister
from trnport.adapters.nki.simulator.isa.enums import engine as Engine
from trnport.adapters.nki.simulator.memory import PSUM, SBUF
from trnport.adapters.nki.simulator.pattern import ColumnLookup
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = [
    "affine",
    "number",
    "pick_engine",
    "quiet",
    "require_column",
    "same_width",
    "scalar_or_column",
    "tile",
    "whole_number",
]

#: Overflow, NaN and the like are results here, not warnings.
quiet = np.errstate(all="ignore")

INT32 = (-(2**31), 2**31 - 1)


def tile(
    instruction: str, name: str, t: Any, *, psum: bool = True, indirect: bool = False
) -> NkiTensor:
    """Check a tile operand.

    Args:
        instruction: Named in messages.
        name: The operand.
        t: What the kernel passed.
        psum: Whether the engine reaches PSUM for it.
        indirect: Whether it may be an `.indirect()` view.

    Returns:
        The tensor.

    Raises:
        TypeError: It is no tensor.
        RuleViolationError: It is elsewhere, too tall, misplaced or indirect.
    """
    if psum:
        check.require_tile(instruction, name, t, SBUF, PSUM)
    else:
        if isinstance(t, NkiTensor) and t.buffer is PSUM:
            violation("NKI-GPSIMD-PSUM", instruction, name, "in psum", "sbuf")
        check.require_tile(instruction, name, t, SBUF)
    if isinstance(t.lookup, ColumnLookup):
        if not indirect:
            violation("NKI-INDIRECT-OPERAND", instruction, name, f"{t}, indirect", "a plain view")
        _require_index_start(instruction, name, t.lookup)
    return t


def _require_index_start(instruction: str, name: str, lookup: ColumnLookup) -> None:
    """An index starts on a quadrant, a gathered operand on the partition of its index."""
    start, base = lookup.index.start_partition, lookup.base.start_partition
    if start % 32 or (name != "dst" and start != base):
        value = f"index of {name} from partition {start}, {name} from {base}"
        limit = "a multiple of 32, where a gathered operand starts too"
        violation("NKI-INDIRECT-START", instruction, name, value, limit)


def number(value: Any) -> bool:
    """Tell whether a value is a compile-time number."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def whole_number(
    instruction: str, name: str, value: Any, limits: tuple[int, int] = INT32, rule: str = ""
) -> int:
    """An integer parameter, or the value of a register.

    Args:
        instruction: Named in messages.
        name: The parameter.
        value: What the kernel passed.
        limits: Smallest and largest value.
        rule: Rule to report; NKI-PARAMETER when empty.
    """
    if isinstance(value, VirtualRegister):
        value = value.peek(instruction)
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not limits[0] <= int(value) <= limits[1]:
        limit = f"an integer from {limits[0]} to {limits[1]}"
        violation(rule or "NKI-PARAMETER", instruction, name, repr(value), limit)
    return int(value)


def require_column(
    instruction: str, name: str, t: Any, partitions: int, dtypes: tuple[str, ...] = ()
) -> NkiTensor:
    """Check a tile with one element per partition.

    Args:
        instruction: Named in messages.
        name: The operand.
        t: What the kernel passed.
        partitions: How many it must have.
        dtypes: What it may hold; anything when empty.
    """
    tile(instruction, name, t)
    if t.shape[0] != partitions or t.free_size != 1:
        violation("NKI-SHAPE", instruction, name, t.shape, f"({partitions}, 1)")
    if dtypes and t.dtype not in dtypes:
        violation("NKI-OPERAND-DTYPE", instruction, name, t.dtype, ", ".join(dtypes))
    return t


def scalar_or_column(
    instruction: str, name: str, value: Any, t: NkiTensor, dtypes: tuple[str, ...] = ("float32",)
) -> Array:
    """A number or a (P, 1) tile as fp32 that broadcasts against a tile.

    Args:
        instruction: Named in messages.
        name: The operand.
        value: What the kernel passed.
        t: The tile it is combined with.
        dtypes: What the column may hold; anything when empty.

    Returns:
        Shape () or (P, 1, ..., 1).
    """
    if isinstance(value, NkiTensor):
        require_column(instruction, name, value, t.shape[0], dtypes)
    elif not number(value):
        violation("NKI-OPERAND", instruction, name, repr(value), "a number or a (P, 1) tile")
    return operand(value, t, instruction)


def same_width(instruction: str, dst: NkiTensor, **sources: NkiTensor) -> None:
    """Refuse tiles of a bitvec operator that differ in element width."""
    for name, source in sources.items():
        if source.itemsize != dst.itemsize:
            value = f"{source.dtype} with dst {dst.dtype}"
            violation("NKI-BITVEC-WIDTH", instruction, name, value, "dtypes of one width")


def pick_engine(
    instruction: str, given: Any, default: str, allowed: tuple[str, ...], why: str = ""
) -> str:
    """The engine an instruction runs on.

    Args:
        instruction: Named in messages.
        given: The `engine` parameter.
        default: Used for `engine.unknown`.
        allowed: Engines that can run it.
        why: Added to the message.

    Returns:
        The engine's name.
    """
    if not isinstance(given, Engine):
        violation("NKI-ENGINE", instruction, "engine", repr(given), "a member of nisa.engine")
    name = str(given.name)
    if name == "unknown":
        return default
    if name not in allowed:
        violation("NKI-ENGINE", instruction, "engine", name, ", ".join(allowed) + why)
    return name


def affine(
    instruction: str,
    pattern: Any,
    offset: Any,
    channel_multiplier: Any,
    t: NkiTensor,
) -> Array:
    """Values of an affine pattern in int32 arithmetic.

    Args:
        instruction: Named in messages.
        pattern: Up to four [step, count] pairs, slowest first.
        offset: Integer or register.
        channel_multiplier: Integer factor of the partition's index.
        t: Tile whose partitions and free elements the pattern covers.

    Returns:
        int32 [P, F].
    """
    pairs = _pairs(instruction, pattern)
    total = 1
    for _, count in pairs:
        total *= count
    if total != t.free_size:
        limit = f"{t.free_size} elements per partition of {t}"
        violation("NKI-PATTERN", instruction, "pattern", f"{total} elements", limit)
    start = whole_number(instruction, "offset", offset)
    factor = whole_number(instruction, "channel_multiplier", channel_multiplier)
    values = np.zeros(1, np.int64)
    for step, count in pairs:
        values = (values[:, None] + step * np.arange(count, dtype=np.int64)).reshape(-1)
    rows = start + factor * np.arange(t.shape[0], dtype=np.int64)
    return (rows[:, None] + values).astype(np.int32)


def _pairs(instruction: str, pattern: Any) -> list[tuple[int, int]]:
    listed = isinstance(pattern, list | tuple) and 1 <= len(pattern) <= 4
    if not listed or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pattern):
        violation("NKI-PATTERN", instruction, "pattern", pattern, "1 to 4 pairs [step, count]")
    pairs = []
    for step, count in pattern:
        whole_number(instruction, "pattern step", step, rule="NKI-PATTERN")
        whole_number(instruction, "pattern count", count, (1, INT32[1]), "NKI-PATTERN")
        pairs.append((int(step), int(count)))
    return pairs


def stored(t: NkiTensor, instruction: str) -> Array:
    """Values of a tile flattened to [P, F], in its own dtype; see `access.read`."""
    return read(t, instruction).reshape(t.shape[0], -1)
