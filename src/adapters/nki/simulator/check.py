# SPDX-License-Identifier: Apache-2.0
"""Checks that instructions share; each names instruction, operand, value and limit."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any, TypeVar

from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.memory import PSUM, MemoryRegion, legal_start
from trnport.adapters.nki.simulator.rules import violation
from trnport.adapters.nki.simulator.targets import PARTITIONS, VIEW_DIMS_MAX
from trnport.adapters.nki.simulator.tensor import NkiTensor

EnumT = TypeVar("EnumT", bound=Enum)


def partitions(t: NkiTensor) -> int:
    """Return the partitions of a tile."""
    return t.shape[0]


def free_size(t: NkiTensor) -> int:
    """Return the elements per partition of a tile."""
    return t.free_size


def require_tensor(instruction: str, name: str, t: Any) -> None:
    """Refuse an operand that is no tensor.

    Raises:
        TypeError: Naming the operand.
    """
    if not isinstance(t, NkiTensor):
        raise TypeError(f"{instruction}: {name} is {t!r}; it must be an NkiTensor")


def require_buffer(instruction: str, name: str, t: Any, *allowed: MemoryRegion) -> None:
    """Refuse an operand in a memory that the instruction does not reach."""
    if not isinstance(t, NkiTensor):
        require_tensor(instruction, name, t)
    if t.buffer not in allowed:
        violation(
            "NKI-BUFFER", instruction, name, t.buffer.value, " or ".join(b.value for b in allowed)
        )


def require_tile(instruction: str, name: str, t: NkiTensor, *allowed: MemoryRegion) -> None:
    """Refuse an operand of a compute engine that is elsewhere or starts at a wrong partition."""
    require_buffer(instruction, name, t, *allowed)
    count = t.shape[0]
    if count > PARTITIONS:
        violation("NKI-PARTITIONS", instruction, name, count, f"<= {PARTITIONS}")
    if len(t.shape) > VIEW_DIMS_MAX:
        violation("NKI-VIEW-DIMS", instruction, name, t.shape, f"{VIEW_DIMS_MAX} dimensions")
    start = t.start_partition if t.offset or t.storage.partition else 0
    if start and not legal_start(start, count):
        violation(
            "NKI-START-PARTITION",
            instruction,
            name,
            f"{count} partitions from {start}",
            "<= 64 from 64" if count > 32 else "a start of 0, 32, 64 or 96",
        )


def require_shape(instruction: str, name: str, shape: tuple[int, ...], wanted: Any) -> None:
    """Refuse a shape that differs from `wanted`."""
    if tuple(shape) != tuple(wanted):
        violation("NKI-SHAPE", instruction, name, tuple(shape), tuple(wanted))


def require_same_shape(instruction: str, a: NkiTensor, b: NkiTensor, names: str = "dst") -> None:
    """Refuse two tensors of different shapes."""
    if a.shape != b.shape:
        violation("NKI-SHAPE", instruction, names, a.shape, b.shape)


def require_same_free(instruction: str, a: NkiTensor, b: NkiTensor, names: str = "dst") -> None:
    """Refuse two tiles that differ in partitions or in elements per partition."""
    if a.shape[0] != b.shape[0] or a.free_size != b.free_size:
        violation(
            "NKI-SHAPE",
            instruction,
            names,
            f"{a.shape[0]} partitions of {a.free_size} elements",
            f"{b.shape[0]} partitions of {b.free_size}",
        )


def require_dtype(instruction: str, name: str, t: NkiTensor, allowed: Collection[str]) -> None:
    """Refuse a dtype that is not among `allowed`."""
    if t.dtype not in allowed:
        violation("NKI-DTYPE", instruction, name, t.dtype, ", ".join(sorted(allowed)))


def require_same_dtype(instruction: str, a: NkiTensor, b: NkiTensor, names: str = "dst") -> None:
    """Refuse two tensors of different dtypes."""
    if a.dtype != b.dtype:
        violation("NKI-DTYPE", instruction, names, a.dtype, b.dtype)


def require_not_both_psum(instruction: str, a: NkiTensor, b: NkiTensor, names: str) -> None:
    """Refuse two operands that are both in PSUM."""
    if a.buffer is PSUM and b.buffer is PSUM:
        violation("NKI-BUFFER", instruction, names, "both in psum", "at most one in psum")


def require_parameter(instruction: str, name: str, value: Any, allowed: Collection[Any]) -> None:
    """Refuse a parameter value that is not among `allowed`."""
    if value not in allowed:
        violation("NKI-PARAMETER", instruction, name, value, ", ".join(str(v) for v in allowed))


def require_enum(instruction: str, name: str, value: Any, kind: type[EnumT]) -> EnumT:
    """Return an enum member; older kernels pass its number, which only `strict=False` accepts."""
    if isinstance(value, kind):
        return value
    if value in [member.value for member in kind]:
        violation("NKI-ENUM", instruction, name, repr(value), f"nisa.{kind.__name__} members")
        return kind(value)
    violation("NKI-PARAMETER", instruction, name, repr(value), f"nisa.{kind.__name__} members")
    raise AssertionError


def require_generation(instruction: str, generation: int, what: str = "target") -> None:
    """Refuse an instruction or option that the target lacks.

    Args:
        instruction: The instruction.
        generation: First NeuronCore version that has it.
        what: What needs it.
    """
    target = machine.current().target
    if target.generation < generation:
        violation(
            "NKI-TARGET", instruction, what, target.name, f"NeuronCore-v{generation} or newer"
        )
