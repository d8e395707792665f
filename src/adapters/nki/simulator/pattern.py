# SPDX-License-Identifier: Apache-2.0
"""Access patterns: `.ap`, and views whose addresses depend on data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.dtypes import (
    FLOATS,
    Array,
    dtype_name,
    itemsize,
    stored_dtype,
)
from trnport.adapters.nki.simulator.handles import VirtualRegister
from trnport.adapters.nki.simulator.memory import SBUF
from trnport.adapters.nki.simulator.rules import NotSimulatedError, Rule, add, violation
from trnport.adapters.nki.simulator.targets import VIEW_DIMS_MAX

if TYPE_CHECKING:
    from trnport.adapters.nki.simulator.tensor import NkiTensor

_AP = "nki.language.NkiTensor.ap"

add(
    Rule("NKI-OOB", "Every access stays inside its tensor.", "nki.language.NkiTensor: indexing"),
    Rule(
        "NKI-OOB-PARTIAL",
        "A transfer that may be skipped is inside its tensor or outside, not both: whether the "
        "part inside moves is not documented.",
        "nki.isa.dma_copy: oob_mode",
        relaxed=True,
    ),
    Rule("NKI-AP-VIEW", "Call .ap on a whole tensor: on a view its meaning is unclear.", _AP, True),
    Rule("NKI-AP-PATTERN", "A pattern is [[stride, count], ...] of ints, 1 to 5 pairs.", _AP),
    Rule(
        "NKI-AP-PARTITION",
        "On chip the first pair steps whole partitions: [elements per partition, count].",
        _AP,
    ),
    Rule("NKI-AP-OFFSETS", "scalar_offset and vector_offset exclude each other.", _AP),
    Rule(
        "NKI-AP-VECTOR",
        "vector_offset indexes dimension 0 of an HBM tensor, with int32 or uint32 rows in SBUF.",
        _AP,
    ),
    Rule(
        "NKI-AP-SCALAR",
        "scalar_offset is a register or a tensor of one integer; dimension 0 only in HBM.",
        _AP,
    ),
    Rule(
        "NKI-INDIRECT-TWICE",
        "A view takes one dynamic index, and that dimension is not indexed again.",
        "nki.language.NkiTensor.is_indirect",
    ),
    Rule(
        "NKI-INDIRECT",
        "Tensor indirection exists from NeuronCore-v4: index (P, K) in SBUF, integers.",
        "nki.language.NkiTensor.indirect",
    ),
)


@attrs.frozen(eq=False)
class ScalarLookup:
    """The view starts `index * stride` elements later.

    Attributes:
        index: Register, or tensor of one integer.
        stride: Elements per step.
        limit: First index that is out of bounds; None if only the addresses decide.
    """

    index: Any
    stride: int
    limit: int | None = None


@attrs.frozen(eq=False)
class VectorLookup:
    """Row i of the view starts at `index[i] * stride`.

    Attributes:
        index: SBUF tensor; its column-major order gives the rows.
        stride: Elements per row of the base.
        limit: Rows of the base.
    """

    index: NkiTensor
    stride: int
    limit: int


@attrs.frozen(eq=False)
class ColumnLookup:
    """Column j of the view is column `index[j % group, j // group]` of the base, per partition."""

    index: NkiTensor
    base: NkiTensor


Lookup = ScalarLookup | VectorLookup | ColumnLookup


def is_whole(t: NkiTensor) -> bool:
    """Tell whether a view covers its storage in order, whatever its shape."""
    step = 1
    for size, stride in zip(reversed(t.shape), reversed(t.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return t.offset == 0 and step * itemsize(t.dtype) == t.storage.size * itemsize(t.storage.dtype)


def reinterpretable(t: NkiTensor, dtype: str) -> None:
    """Refuse a reinterpretation of bits that precise mode does not hold.

    Raises:
        NotSimulatedError: Precise mode stores one of the dtypes as float32.
    """
    held = {name: stored_dtype(name, True) != stored_dtype(name) for name in (t.dtype, dtype)}
    if t.storage.precise and dtype != t.dtype and any(held.values()):
        raise NotSimulatedError(
            f"precise mode holds {t.dtype if held[t.dtype] else dtype} as float32, so {t.dtype} "
            f"cannot be viewed as {dtype}: simulate with precise=False"
        )


def ap(
    t: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int | None,
    scalar_offset: Any,
    vector_offset: NkiTensor | None,
    indirect_dim: int,
    dtype: object,
) -> NkiTensor:
    """Implement `NkiTensor.ap`.

    Raises:
        RuleViolationError: The pattern breaks a rule or leaves the tensor.
    """
    if not is_whole(t) or t.lookup is not None:
        violation("NKI-AP-VIEW", "ap", "tensor", f"{t} at offset {t.offset}", "a whole tensor")
    pairs = _pairs(pattern)
    name = t.dtype if dtype is None else dtype_name(dtype)
    reinterpretable(t, name)
    base_offset = t.offset * itemsize(t.dtype) // itemsize(name)
    start = base_offset + (0 if offset is None else int(offset))
    shape = tuple([count for _, count in pairs])
    strides = tuple([stride for stride, _ in pairs])
    if scalar_offset is not None and vector_offset is not None:
        violation("NKI-AP-OFFSETS", "ap", "offsets", "both given", "one of them")
    lookup: ScalarLookup | VectorLookup | None = None
    if scalar_offset is not None:
        lookup = _scalar(t, scalar_offset, indirect_dim)
    elif vector_offset is not None:
        lookup = _vector(t, vector_offset, indirect_dim)
        strides = (lookup.stride, *strides[1:])
    if lookup is not None and name != t.dtype:
        scale = itemsize(t.dtype) / itemsize(name)
        lookup = attrs.evolve(lookup, stride=int(lookup.stride * scale))
    result = t.derive(shape, strides, start, dtype=name, lookup=lookup)
    check_bounds(result, "ap")
    return result


def _pairs(pattern: Any) -> list[tuple[int, int]]:
    try:
        pairs = [(int(stride), int(count)) for stride, count in pattern]
    except (TypeError, ValueError):
        pairs = []
    if not 1 <= len(pairs) <= VIEW_DIMS_MAX or any(count < 1 for _, count in pairs):
        violation("NKI-AP-PATTERN", "ap", "pattern", pattern, "[[stride, count >= 1], ...]")
    return pairs


def _scalar(t: NkiTensor, index: Any, dim: int) -> ScalarLookup:
    dim = _indirect_dim(t, dim, "NKI-AP-SCALAR")
    if not isinstance(index, VirtualRegister):
        scalar_index(index, "ap")
    if t.on_chip and dim == 0:
        violation("NKI-AP-SCALAR", "ap", "indirect_dim", dim, "a free dimension on chip")
    return ScalarLookup(index, math.prod(t.shape[dim + 1 :]))


def scalar_index(index: Any, instruction: str) -> None:
    """Refuse a dynamic index that is not a tensor of one integer.

    Raises:
        RuleViolationError: It is something else.
    """
    if getattr(index, "size", 0) != 1 or getattr(index, "dtype", "") not in {"int32", "uint32"}:
        violation("NKI-AP-SCALAR", instruction, "index", index, "(1, 1) int32 or uint32")
    if index.buffer is not SBUF:
        violation("NKI-AP-SCALAR", instruction, "index", index, "a tensor in SBUF")


def vector_index(t: NkiTensor, index: Any, instruction: str) -> None:
    """Refuse per-row indices that are not integers in SBUF, or a base outside HBM.

    Raises:
        RuleViolationError: Naming the wrong side.
    """
    if t.on_chip:
        violation("NKI-AP-VECTOR", instruction, "tensor", t, "a tensor in HBM")
    if getattr(index, "buffer", None) is not SBUF or index.dtype not in {"int32", "uint32"}:
        violation("NKI-AP-VECTOR", instruction, "vector_offset", index, "int32 or uint32 in SBUF")


def _vector(t: NkiTensor, index: NkiTensor, dim: int) -> VectorLookup:
    if dim != 0:
        violation("NKI-AP-VECTOR", "ap", "indirect_dim", dim, 0)
    vector_index(t, index, "ap")
    return VectorLookup(index, math.prod(t.shape[1:]), t.shape[0])


def _indirect_dim(t: NkiTensor, dim: int, rule: str) -> int:
    if not 0 <= dim < t.ndim:
        violation(rule, "ap", "indirect_dim", dim, f"0 to {t.ndim - 1}")
    return dim


def check_bounds(t: NkiTensor, instruction: str) -> None:
    """Refuse a static pattern that leaves its tensor, or steps partitions on chip.

    The dimension that a vector lookup fills is checked when its rows are known.

    Raises:
        RuleViolationError: Naming the first element outside.
    """
    size = itemsize(t.dtype)
    skip = isinstance(t.lookup, VectorLookup)
    first = 1 if t.on_chip or skip else 0
    low = t.offset + sum(min(0, s) * (n - 1) for s, n in _dims(t)[first:])
    high = t.offset + sum(max(0, s) * (n - 1) for s, n in _dims(t)[first:])
    total = t.storage.size * itemsize(t.storage.dtype) // size
    if not t.on_chip:
        if (low < 0 or high >= total) and not skip:
            violation("NKI-OOB", instruction, f"{t}", f"elements {low} to {high}", f"< {total}")
        return
    row = t.storage.row_bytes // size
    if t.shape[0] > 1 and t.strides[0] != row:
        violation(
            "NKI-AP-PARTITION", instruction, "pattern[0]", (t.strides[0], t.shape[0]), f"[{row}, P]"
        )
    start = t.offset // row
    if t.offset < 0 or start + t.shape[0] > t.storage.shape[0]:
        violation(
            "NKI-OOB",
            instruction,
            f"{t}",
            f"partitions {start} to {start + t.shape[0] - 1}",
            f"< {t.storage.shape[0]}",
        )
    if low < start * row or high >= (start + 1) * row:
        violation(
            "NKI-OOB",
            instruction,
            f"{t}",
            f"elements {low - start * row} to {high - start * row} of a partition",
            f"< {row}",
        )


def _dims(t: NkiTensor) -> list[tuple[int, int]]:
    return list(zip(t.strides, t.shape, strict=True))


def shifted(t: NkiTensor, value: int, instruction: str, *, skip: bool) -> NkiTensor | None:
    """Return the static view that a scalar lookup addresses, None if skipped as out of bounds.

    Raises:
        RuleViolationError: The index is out of bounds and `skip` is off, or only partly out.
    """
    lookup = t.lookup
    result = t.derive(t.shape, t.strides, t.offset + value * lookup.stride, lookup=None)
    inside = value >= 0 and (lookup.limit is None or value < lookup.limit)
    if not (inside and _within(result)):
        if skip:
            total = t.storage.size * itemsize(t.storage.dtype) // itemsize(t.dtype)
            if inside and result.offset < total:
                view = f"dynamic index of {t}"
                violation("NKI-OOB-PARTIAL", instruction, view, value, "all inside or all outside")
            return None
        limit = f"0 to {lookup.limit - 1}" if lookup.limit else "an index inside the tensor"
        violation("NKI-OOB", instruction, f"dynamic index of {t}", value, limit)
    return result


def _within(t: NkiTensor) -> bool:
    low = t.offset + sum(min(0, s) * (n - 1) for s, n in _dims(t))
    high = t.offset + sum(max(0, s) * (n - 1) for s, n in _dims(t))
    size = itemsize(t.dtype)
    if low < 0 or high >= t.storage.size * itemsize(t.storage.dtype) // size:
        return False
    if not t.on_chip:
        return True
    row = t.storage.row_bytes // size
    free_high = t.offset + sum(max(0, s) * (n - 1) for s, n in _dims(t)[1:])
    return t.offset // row == free_high // row


def windows(t: NkiTensor, memory: Array | None = None) -> Array:
    """Return every row a vector lookup could address, as an array [rows, ...] on the storage.

    Args:
        t: View with a vector lookup.
        memory: Bytes to look at instead of the storage's values, such as its mask.
    """
    lookup = t.lookup
    size = itemsize(t.dtype)
    inner = _dims(t)[1:]
    reach = t.offset + sum(max(0, s) * (n - 1) for s, n in inner)
    total = t.storage.size * itemsize(t.storage.dtype) // size
    rows = max(0, min(lookup.limit, (total - 1 - reach) // max(lookup.stride, 1) + 1))
    shape = (rows, *t.shape[1:])
    strides = (lookup.stride, *t.strides[1:])
    if memory is None:
        return t.storage.window(t.dtype, t.offset, shape, strides)
    width = stored_dtype(t.dtype, t.storage.precise).itemsize
    words = {1: np.uint8, 2: np.uint16, 4: np.uint32}[width]
    return np.ndarray(
        shape, words, memory, t.offset * width, tuple([stride * width for stride in strides])
    )


def indirect(t: NkiTensor, index: NkiTensor, num_elem: int | None) -> NkiTensor:
    """Implement `NkiTensor.indirect`.

    Raises:
        RuleViolationError: The target or an operand does not allow it.
    """
    if machine.current().target.generation < 4:
        violation("NKI-INDIRECT", "indirect", "target", machine.current().target.name, "trn3")
    if not t.on_chip or t.lookup is not None:
        violation("NKI-INDIRECT", "indirect", "tensor", t, "a static view on chip")
    if index.buffer is not SBUF or index.dtype in FLOATS or index.shape[0] != t.shape[0]:
        violation("NKI-INDIRECT", "indirect", "index", index, f"({t.shape[0]}, K) integers in SBUF")
    count = index.size if num_elem is None else num_elem
    if not 0 < count <= index.size:
        violation("NKI-INDIRECT", "indirect", "num_elem", count, f"1 to {index.size}")
    shape = (t.shape[0], count)
    return t.derive(shape, (t.strides[0], 1), t.offset, lookup=ColumnLookup(index, t))
