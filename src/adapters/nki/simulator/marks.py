# SPDX-License-Identifier: Apache-2.0
"""Marks on memory: what was written, by whom in PSUM, and by which core in shared HBM."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import machine, pattern
from trnport.adapters.nki.simulator.dtypes import Array
from trnport.adapters.nki.simulator.memory import (
    MATMUL,
    NOTHING,
    OTHER,
    PSUM,
    SHARED_HBM,
    Storage,
)
from trnport.adapters.nki.simulator.rules import Rule, add, violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

add(
    Rule(
        "NKI-WRITE-BROADCAST",
        "A destination names each element once.",
        "nki.language.NkiTensor.broadcast",
        relaxed=True,  # kernels throw results away so, and keep only a reduction
    ),
    Rule(
        "NKI-RACE",
        "Cores meet between a write to shared HBM and another core's read of it.",
        "nki.isa.core_barrier",
        relaxed=True,
    ),
)

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_WRITTEN = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF}  # a written element's mask, by bytes


def mark(
    t: NkiTensor,
    instruction: str = "write",
    *,
    matmul: bool = False,
    where: Array | None = None,
) -> None:
    """Note that a static view is being written.

    Args:
        t: The view.
        instruction: Named in messages.
        matmul: Whether a matmul writes.
        where: Which elements are written; None for all.
    """
    storage = t.storage
    if 0 in t.strides and _repeats(t):
        violation("NKI-WRITE-BROADCAST", instruction, "dst", t, "each element once")
    if storage.mask is not None:
        _mark_written(t, storage, where)
    if storage.buffer is PSUM:
        _note_writer(t, storage, MATMUL if matmul else OTHER)
    if storage.aliases:
        storage.clobber()
    if storage.buffer is SHARED_HBM and machine.current().exchange is not None:
        _own(_bytes_of(t, _owners(storage)), ...)


def last_writer(t: NkiTensor) -> int | Array:
    """Return who wrote a PSUM view last: one of `memory.NOBODY`, `MATMUL`, `OTHER`, or an array."""
    storage = t.storage
    if storage.writers is None:
        return storage.writer
    who = _bytes_of(t, storage.writers)
    first = int(who.item(0))
    return first if (who == first).all() else who


def mark_rows(t: NkiTensor, rows: Array) -> None:
    """Note that rows of a view with a vector lookup are being written."""
    storage = t.storage
    if storage.mask is not None:
        words = pattern.windows(t, storage.partial_mask())
        words[rows] = _WRITTEN[words.itemsize]
    if storage.buffer is SHARED_HBM and machine.current().exchange is not None:
        _own(pattern.windows(t, _owners(storage)), rows)


def require_rows_written(t: NkiTensor, rows: Array, instruction: str) -> None:
    """Refuse rows of a view with a vector lookup that were never written."""
    words = pattern.windows(t, t.storage.partial_mask())
    missing = int(np.count_nonzero(words[rows] != _WRITTEN[words.itemsize]))
    if missing:
        _unwritten(t, missing, instruction)


def _words(t: NkiTensor, mask: Array) -> Array:
    size = t.array().itemsize
    return np.ndarray(
        t.shape,
        _WORDS[size],
        mask,
        t.offset * size,
        tuple([stride * size for stride in t.strides]),
    )


def _bytes_of(t: NkiTensor, memory: Array) -> Array:
    """Return the first byte of each element of a view, in an array of the storage's size."""
    size = t.array().itemsize
    return np.ndarray(
        t.shape,
        np.uint8,
        memory,
        t.offset * size,
        tuple([stride * size for stride in t.strides]),
    )


def _owners(storage: Storage) -> Array:
    if storage.owners is None:
        storage.owners = np.zeros(storage.raw.size, np.uint8)
        machine.current().exchange.unsettled.append(storage)
    return storage.owners


def _own(owners: Array, where: Any) -> None:
    """Note that the current core writes; what both wrote belongs to either (3).

    Cores that do all the work twice and store the same values are common and harmless.
    """
    owners[where] = (owners[where] & 0xFF) | (machine.current().index + 1)


def require_own(t: NkiTensor, instruction: str, rows: Array | None = None) -> None:
    """Refuse elements that the other core wrote since both met; the low byte tells who did."""
    assert t.storage.owners is not None
    if rows is None:
        owners = _bytes_of(t, t.storage.owners)
    else:
        owners = pattern.windows(t, t.storage.owners)[rows]
    other = 2 - machine.current().index
    if ((owners & 0xFF) == other).any():
        violation(
            "NKI-RACE",
            instruction,
            f"{t}",
            f"read by core {2 - other} after core {other - 1} wrote it",
            "nisa.core_barrier between the two",
        )


def _note_writer(t: NkiTensor, storage: Storage, who: int) -> None:
    if t.array().size * t.array().itemsize == storage.raw.size:
        storage.writer, storage.writers = who, None
    elif storage.writers is not None or storage.writer != who:
        _bytes_of(t, storage.each_writer())[...] = who


def _repeats(t: NkiTensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(t.strides, t.shape, strict=True))


def _mark_written(t: NkiTensor, storage: Storage, where: Array | None) -> None:
    if where is not None:
        words = _words(t, storage.partial_mask())
        words[where] = _WRITTEN[words.itemsize]
        return
    if t.array().size * t.array().itemsize == storage.raw.size:
        storage.mask = None  # one write covers everything
        return
    words = _words(t, storage.partial_mask())
    words[...] = _WRITTEN[words.itemsize]


def require_written(t: NkiTensor, instruction: str) -> None:
    """Refuse a static view with elements that were never written."""
    storage = t.storage
    mask = storage.mask
    assert mask is not None
    if mask is NOTHING:
        missing = t.array().size
    else:
        words = _words(t, mask)
        missing = words.size - int(np.count_nonzero(words == _WRITTEN[words.itemsize]))
        if not missing and t.array().nbytes == storage.raw.size:
            storage.mask = None
    if missing:
        _unwritten(t, missing, instruction)


def _unwritten(t: NkiTensor, missing: int, instruction: str) -> None:
    violation(
        "NKI-UNWRITTEN",
        instruction,
        f"{t}",
        f"read with {missing} of {t.size} elements never written",
        "memory that was written before",
    )
