# SPDX-License-Identifier: Apache-2.0
"""The view operations of `NkiTensor`: free of copies, checked at once."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from trnport.adapters.nki.simulator.dtypes import dtype_name, itemsize
from trnport.adapters.nki.simulator.handles import VirtualRegister
from trnport.adapters.nki.simulator.pattern import (
    ScalarLookup,
    VectorLookup,
    reinterpretable,
    scalar_index,
    vector_index,
)
from trnport.adapters.nki.simulator.rules import Rule, add, violation

if TYPE_CHECKING:
    from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["DynamicSlice", "itemsize"]

_TENSOR = "nki.language.NkiTensor"

add(
    Rule("NKI-INDEX", "An index is int, slice, nl.ds or Ellipsis.", f"{_TENSOR}.__getitem__"),
    Rule("NKI-VIEW-DIM", "A view operation names an existing dimension.", _TENSOR),
    Rule(
        "NKI-VIEW-PARTITION",
        "Views keep the partition dimension first, whole and unbroadcast.",
        f"{_TENSOR}: partition dimension",
    ),
    Rule(
        "NKI-PARTITION-STEP",
        "On-chip partitions are consecutive: no step on dimension 0.",
        "Trainium/Inferentia2 architecture guide: partition access",
        relaxed=True,
    ),
    Rule("NKI-VIEW-SIZE", "A view keeps the number of elements.", _TENSOR),
    Rule("NKI-VIEW-LAYOUT", "A view cannot need a copy.", f"{_TENSOR}.reshape"),
)


@attrs.frozen
class DynamicSlice:
    """`nl.ds(start, size)`."""

    start: int
    size: int


def _dim(t: NkiTensor, dim: int, name: str, extra: int = 0) -> int:
    if dim < 0:
        dim += t.ndim + extra
    if not 0 <= dim < t.ndim + extra:
        violation("NKI-VIEW-DIM", name, "dim", dim, f"0 to {t.ndim + extra - 1}")
    return dim


def _keeps_rows(t: NkiTensor, dim: int, name: str) -> None:
    if dim == 0 and (t.on_chip or isinstance(t.lookup, VectorLookup)):
        violation("NKI-VIEW-PARTITION", name, "dim", 0, "a free dimension")


def _range(t: NkiTensor, dim: int, part: Any) -> tuple[int, int, int]:
    """Return (start, count, step) of one slice."""
    size = t.shape[dim]
    try:
        if isinstance(part, DynamicSlice):
            start, step = operator.index(part.start), 1
            stop = start + operator.index(part.size)
        else:
            step = 1 if part.step is None else operator.index(part.step)
            start = 0 if part.start is None else operator.index(part.start)
            stop = size if part.stop is None else operator.index(part.stop)
            start += size if start < 0 else 0
            stop += size if stop < 0 else 0
    except TypeError as error:
        violation("NKI-INDEX", "index", f"dimension {dim}", f"{part} ({error})", "integers")
        raise
    if not 0 <= start < stop <= size or step < 1:
        violation("NKI-OOB", "index", f"dimension {dim} of {t}", f"{start}:{stop}:{step}", size)
    return start, -(-(stop - start) // step), step


def index(t: NkiTensor, key: Any) -> NkiTensor:
    """Implement `t[key]`.

    Raises:
        RuleViolationError: The key is no index or leaves the tensor.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    missing = t.ndim - (len(parts) - parts.count(Ellipsis))
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * missing
    else:
        parts += [slice(None)] * missing
    if missing < 0 or len(parts) != t.ndim:
        violation("NKI-INDEX", "index", "key", key, f"at most {t.ndim} indices")
    shape: list[int] = []
    strides: list[int] = []
    offset = t.offset
    for dim, part in enumerate(parts):
        stride = t.strides[dim]
        if isinstance(part, slice | DynamicSlice):
            if isinstance(part, slice) and part == slice(None):
                shape.append(t.shape[dim])
                strides.append(stride)
                continue
            start, count, step = _range(t, dim, part)
            if dim == 0:
                _check_rows(t, step, count)
            shape.append(count)
            strides.append(stride * step)
        else:
            start = _position(t, dim, part)
            if dim == 0:
                _check_rows(t, 1, 1)
            if _stays(t, dim, len(shape)):
                shape.append(1)
                strides.append(stride)
        offset += start * stride
    return t.derive(tuple(shape), tuple(strides), offset)


def _check_rows(t: NkiTensor, step: int, count: int) -> None:
    if isinstance(t.lookup, VectorLookup):
        violation("NKI-INDIRECT-TWICE", "index", "dimension 0", "indexed by data", "other ones")
    if t.on_chip and step != 1 and count > 1:
        violation("NKI-PARTITION-STEP", "index", "step of dimension 0", step, 1)


def _position(t: NkiTensor, dim: int, part: Any) -> int:
    try:
        place = operator.index(part)
    except TypeError as error:
        violation(
            "NKI-INDEX", "index", f"dimension {dim}", f"{part!r} ({error})", "int, slice, nl.ds"
        )
        raise
    if place < 0:
        place += t.shape[dim]
    if not 0 <= place < t.shape[dim]:
        violation("NKI-OOB", "index", f"dimension {dim} of {t}", part, f"< {t.shape[dim]}")
    return place


def _stays(t: NkiTensor, dim: int, kept: int) -> bool:
    """Tell whether an integer index leaves a dimension of size 1 behind."""
    last = dim == t.ndim - 1
    if t.on_chip:
        return dim == 0 or (last and kept < 2)
    return last and kept < 1


def slice_dim(t: NkiTensor, dim: int, start: int, end: int, step: int) -> NkiTensor:
    """Implement `NkiTensor.slice`."""
    dim = _dim(t, dim, "slice")
    if not 0 <= start < end <= t.shape[dim] or step < 1:
        violation("NKI-OOB", "slice", f"dimension {dim} of {t}", (start, end, step), t.shape[dim])
    return index(t, (slice(None),) * dim + (slice(start, end, step),))


def permute(t: NkiTensor, dims: Sequence[int]) -> NkiTensor:
    """Implement `NkiTensor.permute`."""
    if sorted(dims) != list(range(t.ndim)):
        violation("NKI-VIEW-DIM", "permute", "dims", dims, f"a permutation of 0 to {t.ndim - 1}")
    if dims[0] != 0:
        _keeps_rows(t, 0, "permute")
    return t.derive(
        tuple([t.shape[d] for d in dims]), tuple([t.strides[d] for d in dims]), t.offset
    )


def broadcast(t: NkiTensor, dim: int, size: int) -> NkiTensor:
    """Implement `NkiTensor.broadcast`."""
    dim = _dim(t, dim, "broadcast")
    _keeps_rows(t, dim, "broadcast")
    if t.shape[dim] != 1 or size < 1:
        violation("NKI-VIEW-SIZE", "broadcast", f"dimension {dim}", t.shape[dim], 1)
    shape, strides = list(t.shape), list(t.strides)
    shape[dim], strides[dim] = size, 0
    return t.derive(tuple(shape), tuple(strides), t.offset)


def expand_dim(t: NkiTensor, dim: int) -> NkiTensor:
    """Implement `NkiTensor.expand_dim`."""
    dim = _dim(t, dim, "expand_dim", extra=1)
    _keeps_rows(t, dim, "expand_dim")
    stride = t.shape[dim] * t.strides[dim] if dim < t.ndim else 1
    return t.derive(
        (*t.shape[:dim], 1, *t.shape[dim:]), (*t.strides[:dim], stride, *t.strides[dim:]), t.offset
    )


def squeeze_dim(t: NkiTensor, dim: int) -> NkiTensor:
    """Implement `NkiTensor.squeeze_dim`."""
    dim = _dim(t, dim, "squeeze_dim")
    _keeps_rows(t, dim, "squeeze_dim")
    if t.shape[dim] != 1:
        violation("NKI-VIEW-SIZE", "squeeze_dim", f"dimension {dim}", t.shape[dim], 1)
    return t.derive(
        t.shape[:dim] + t.shape[dim + 1 :], t.strides[:dim] + t.strides[dim + 1 :], t.offset
    )


def _inferred(shape: Sequence[int], total: int, name: str) -> tuple[int, ...]:
    sizes = [int(size) for size in shape]
    if sizes.count(-1) == 1:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = total // known if known else 0
    if math.prod(sizes) != total or any(size < 1 for size in sizes):
        violation("NKI-VIEW-SIZE", name, "shape", tuple(shape), f"{total} elements")
    return tuple(sizes)


def reshape_dim(t: NkiTensor, dim: int, shape: Sequence[int]) -> NkiTensor:
    """Implement `NkiTensor.reshape_dim`."""
    dim = _dim(t, dim, "reshape_dim")
    sizes = _inferred(shape, t.shape[dim], "reshape_dim")
    if len(sizes) != 1:
        _keeps_rows(t, dim, "reshape_dim")
    strides = []
    step = t.strides[dim]
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return t.derive(
        t.shape[:dim] + sizes + t.shape[dim + 1 :],
        t.strides[:dim] + tuple(reversed(strides)) + t.strides[dim + 1 :],
        t.offset,
    )


def flatten_dims(t: NkiTensor, start: int, end: int) -> NkiTensor:
    """Implement `NkiTensor.flatten_dims`."""
    start, end = _dim(t, start, "flatten_dims"), _dim(t, end, "flatten_dims")
    if start > end:
        violation("NKI-VIEW-DIM", "flatten_dims", "start_dim", start, f"<= {end}")
    _keeps_rows(t, start, "flatten_dims")
    sizes = (math.prod(t.shape[start : end + 1]),)
    strides = _split(t.shape[start : end + 1], t.strides[start : end + 1], sizes)
    if strides is None:
        violation("NKI-VIEW-LAYOUT", "flatten_dims", f"{t}", t.strides, "contiguous dimensions")
    assert strides is not None
    return t.derive(
        t.shape[:start] + sizes + t.shape[end + 1 :],
        t.strides[:start] + strides + t.strides[end + 1 :],
        t.offset,
    )


def reshape(t: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """Implement `NkiTensor.reshape`."""
    sizes = _inferred(shape, t.size, "reshape")
    rows = t.on_chip or isinstance(t.lookup, VectorLookup)
    if rows and sizes[0] != t.shape[0]:
        violation("NKI-VIEW-PARTITION", "reshape", "shape[0]", sizes[0], t.shape[0])
    kept = 1 if rows else 0
    strides = _split(t.shape[kept:], t.strides[kept:], sizes[kept:])
    if strides is None:
        violation("NKI-VIEW-LAYOUT", "reshape", f"{t} to {sizes}", t.strides, "a layout to match")
    assert strides is not None
    return t.derive(sizes, t.strides[:kept] + strides, t.offset)


def _split(
    shape: Sequence[int], strides: Sequence[int], sizes: Sequence[int]
) -> tuple[int, ...] | None:
    """Return strides for `sizes` over the same elements in order; None if that needs a copy."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    result = [0] * len(sizes)
    at = len(old) - 1
    new = len(sizes) - 1
    filler = 1
    while new >= 0:
        if sizes[new] == 1:
            result[new] = filler
            new -= 1
            continue
        count, stride = old[at]
        # Merge old dimensions until they hold the next new one, then split.
        total, at = count, at - 1
        taken = 1
        first = new
        while taken < total or first == new:
            if first < 0:
                return None
            taken *= sizes[first]
            first -= 1
            while taken > total:
                if at < 0 or old[at][1] != stride * total:
                    return None
                total *= old[at][0]
                at -= 1
        if taken != total:
            return None
        step = stride
        for position in range(new, first, -1):
            result[position] = step
            step *= sizes[position]
        filler = step
        new = first
    return tuple(result)


def rearrange(
    t: NkiTensor,
    source: Sequence[Any],
    target: Sequence[Any],
    fixed_sizes: dict[str, int] | None,
) -> NkiTensor:
    """Implement `NkiTensor.rearrange`."""
    if len(source) != t.ndim:
        violation("NKI-VIEW-DIM", "rearrange", "src_pattern", source, f"{t.ndim} entries")
    known = dict(fixed_sizes or {})
    names: list[str] = []
    result = t
    for dim in reversed(range(t.ndim)):
        group = source[dim]
        if isinstance(group, str):
            names.insert(0, group)
            continue
        names[:0] = group
        result = reshape_dim(result, dim, [known.get(name, -1) for name in group])
    wanted = [name for group in target for name in ([group] if isinstance(group, str) else group)]
    if sorted(names) != sorted(wanted) or len(set(names)) != len(names):
        violation("NKI-VIEW-DIM", "rearrange", "dst_pattern", target, f"the names {names}")
    result = permute(result, [names.index(name) for name in wanted])
    for dim, group in enumerate(target):
        if not isinstance(group, str) and len(group) > 1:
            result = flatten_dims(result, dim, dim + len(group) - 1)
    return result


def select(t: NkiTensor, dim: int, position: Any) -> NkiTensor:
    """Implement `NkiTensor.select`, static and dynamic."""
    dim = _dim(t, dim, "select")
    _keeps_rows(t, dim, "select")
    shape, strides = t.shape[:dim] + t.shape[dim + 1 :], t.strides[:dim] + t.strides[dim + 1 :]
    if isinstance(position, VirtualRegister) or hasattr(position, "storage"):
        if t.lookup is not None:
            violation("NKI-INDIRECT-TWICE", "select", "tensor", f"{t}, indirect", "a static view")
        if not isinstance(position, VirtualRegister):
            scalar_index(position, "select")
        lookup = ScalarLookup(position, t.strides[dim], t.shape[dim])
        return t.derive(shape or (1,), strides or (1,), t.offset, lookup=lookup)
    offset = t.offset + _position(t, dim, position) * t.strides[dim]
    if not shape or (t.on_chip and len(shape) < 2):
        shape, strides = (*shape, 1), (*strides, 1)
    return t.derive(shape, strides, offset)


def vector_select(t: NkiTensor, dim: int, offsets: NkiTensor) -> NkiTensor:
    """Implement `NkiTensor.vector_select`."""
    if dim != 0:
        violation("NKI-AP-VECTOR", "vector_select", "dim", dim, 0)
    if t.lookup is not None:
        violation("NKI-INDIRECT-TWICE", "vector_select", "tensor", f"{t}", "a static view")
    vector_index(t, offsets, "vector_select")
    lookup = VectorLookup(offsets, t.strides[0], t.shape[0])
    return t.derive((offsets.shape[0], *t.shape[1:]), t.strides, t.offset, lookup=lookup)


def view(t: NkiTensor, dtype: object) -> NkiTensor:
    """Implement `NkiTensor.view`."""
    name = dtype_name(dtype)
    reinterpretable(t, name)
    if t.lookup is not None:
        violation("NKI-INDIRECT-TWICE", "view", "tensor", f"{t}, indirect", "a static view")
    old, new = itemsize(t.dtype), itemsize(name)
    if old == new:
        return t.derive(t.shape, t.strides, t.offset, dtype=name)
    if t.strides[-1] != 1 and t.shape[-1] != 1:
        violation("NKI-VIEW-LAYOUT", "view", f"last stride of {t}", t.strides[-1], 1)
    scaled = [value * old for value in (t.offset, *t.strides[:-1], t.shape[-1])]
    if any(value % new for value in scaled):
        violation("NKI-VIEW-SIZE", "view", f"{t}", f"bytes {scaled}", f"multiples of {new}")
    offset, *strides, last = [value // new for value in scaled]
    return t.derive((*t.shape[:-1], last), (*strides, 1), offset, dtype=name)


def is_contiguous(t: NkiTensor) -> bool:
    """Implement `NkiTensor.is_contiguous`."""
    step = 1
    first = 1 if t.on_chip else 0
    for size, stride in zip(reversed(t.shape[first:]), reversed(t.strides[first:]), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
