# SPDX-License-Identifier: Apache-2.0
"""Storage behind tensors: bytes, which of them were written, and the use of SBUF and PSUM."""

from __future__ import annotations

import math
import weakref
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.dtypes import Array, itemsize, stored_dtype
from trnport.adapters.nki.simulator.rules import Rule, add, violation
from trnport.adapters.nki.simulator.targets import PARTITIONS

if TYPE_CHECKING:
    from trnport.adapters.nki.simulator.ledger import Ledger

add(
    Rule(
        "NKI-PSUM-BANK",
        "An explicit PSUM address starts on a bank of 2048 bytes.",
        "nki.language.ndarray: address",
        relaxed=True,
    ),
    Rule(
        "NKI-ADDRESS",
        "An address is (partition, byte offset) of on-chip memory.",
        "nki.language.ndarray: address",
    ),
    Rule(
        "NKI-SHARED-ORDER",
        "Both cores allocate the same tensors in shared HBM in the same order.",
        "nki.language.shared_hbm",
    ),
    Rule(
        "NKI-RANK",
        "SBUF and PSUM tensors have at least two dimensions, all of positive size.",
        "nki.language.NkiTensor: partition dimension",
    ),
)


class MemoryRegion(Enum):
    """Memories of a core; members compare equal to their names."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    __hash__ = Enum.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and self.value == other)


SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
HBM, SHARED_HBM = MemoryRegion.private_hbm, MemoryRegion.shared_hbm
ON_CHIP = (SBUF, PSUM)

_FRESH_INTEGER = 4  # what the public simulator fills integers with
_ALL_ONES = 255  # every float dtype reads a word of ones as NaN
NOBODY, MATMUL, OTHER = 0, 1, 2  # who wrote an element of PSUM last
NOTHING = np.zeros(0, np.uint8)  # mask of a storage nobody wrote yet


def _fresh(size: int, stored: np.dtype) -> Array:
    """Return the bytes of memory that nobody wrote: NaN in every float dtype, 4 in integers."""
    if stored.kind in "iub":
        return np.full(size, _FRESH_INTEGER, stored).view(np.uint8)
    return np.full(size * stored.itemsize, _ALL_ONES, np.uint8)


class Storage:
    """Memory of one allocation.

    Attributes:
        raw: The bytes as stored on this machine, uint8, flat.
        mask: None when every byte was written, `NOTHING` when none was, else uint8 per byte: 0 for
            never written, 255 for written.
        writer: PSUM only; who wrote last: `NOBODY`, `MATMUL` or `OTHER`, if the same everywhere.
        writers: PSUM only; the same at the first byte of each element (uint8 per byte), None if
            `writer` tells it all.
        owners: Shared HBM only; core + 1 at the first byte of each element (uint8 per byte) that a
            core wrote since the cores last met, 3 if both did, None if neither.
        shape: Shape at allocation.
        dtype: NKI dtype at allocation.
        buffer: The memory.
        row: Elements per partition (on-chip), or of the last dimensions after the first (HBM).
        partition: First partition (on-chip).
        address: Byte offset in the partition, None when allocated automatically.
        aliases: Weak references to storages at overlapping addresses.
        holders: Those of them whose values would be lost by the next write here.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "aliases",
        "buffer",
        "dtype",
        "holders",
        "ledger",
        "mask",
        "name",
        "owners",
        "partition",
        "precise",
        "raw",
        "row",
        "row_bytes",
        "shape",
        "size",
        "writer",
        "writers",
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str,
        buffer: MemoryRegion,
        *,
        name: str = "",
        raw: Array | None = None,
        precise: bool = False,
    ) -> None:
        self.shape, self.dtype, self.buffer, self.name = shape, dtype, buffer, name
        self.precise = precise
        self.size = math.prod(shape)
        self.row = math.prod(shape[1:])
        self.row_bytes = self.row * itemsize(dtype)
        self.partition = 0
        self.address: int | None = None
        self.aliases: list[weakref.ref[Storage]] = []
        self.holders: list[weakref.ref[Storage]] = []
        self.ledger: Ledger | None = None
        self.owners: Array | None = None
        self.writer = NOBODY
        self.writers: Array | None = None
        self.mask: Array | None = None
        self.raw: Array
        if raw is None:
            self.raw = _fresh(self.size, stored_dtype(dtype, precise))
            self.mask = NOTHING
        else:
            self.raw = raw

    def window(
        self, dtype: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Array:
        """Return elements of the storage as an array that shares its memory.

        Args:
            dtype: NKI dtype of the elements.
            offset: First element, in elements of `dtype`.
            shape: Shape of the result.
            strides: In elements of `dtype`.
        """
        stored = stored_dtype(dtype, self.precise)
        size = stored.itemsize
        return np.ndarray(
            shape, stored, self.raw, offset * size, tuple([stride * size for stride in strides])
        )

    def partial_mask(self) -> Array:
        """Return the per-byte mask, made now if the storage was untouched."""
        if self.mask is NOTHING:
            self.mask = np.zeros(self.raw.size, np.uint8)
        assert self.mask is not None
        return self.mask

    def each_writer(self) -> Array:
        """Return `writers`, made now if `writer` told it all."""
        if self.writers is None:
            self.writers = np.full(self.raw.size, self.writer, np.uint8)
        return self.writers

    def clobber(self) -> None:
        """Note that a write here destroys what overlapping storages hold."""
        if self.holders:
            for other in self.holders:
                storage = other()
                if storage is not None:
                    storage.lose(self)
            self.holders = []
        for other in self.aliases:
            storage = other()
            if storage is not None and all(ref() is not self for ref in storage.holders):
                storage.holders.append(weakref.ref(self))

    def lose(self, other: Storage) -> None:
        """Forget the values at addresses that `other` covers too."""
        if self.mask is NOTHING:
            return
        if self.mask is None:
            self.mask = np.full(self.raw.size, 255, np.uint8)
        assert self.address is not None
        assert other.address is not None
        rows = slice(
            max(other.partition - self.partition, 0),
            other.partition + other.shape[0] - self.partition,
        )
        first = max(other.address - self.address, 0)
        last = min(other.address + other.row_bytes - self.address, self.row_bytes)
        scale = self.raw.size // (self.shape[0] * self.row_bytes)  # precise mode stores more bytes
        columns = slice(first * scale, last * scale)
        self.mask.reshape(self.shape[0], -1)[rows, columns] = 0
        if self.buffer is PSUM:
            self.each_writer().reshape(self.shape[0], -1)[rows, columns] = NOBODY

    def overlaps(self, other: Storage) -> bool:
        """Tell whether two storages at explicit addresses share memory."""
        assert self.address is not None
        assert other.address is not None
        return (
            self.partition < other.partition + other.shape[0]
            and other.partition < self.partition + self.shape[0]
            and self.address < other.address + other.row_bytes
            and other.address < self.address + self.row_bytes
        )

    def __del__(self) -> None:
        ledger = getattr(self, "ledger", None)
        if ledger is not None:
            ledger.release(self)


def allocate(
    shape: tuple[int, ...],
    dtype: str,
    buffer: MemoryRegion,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> Storage:
    """Allocate memory on the current core.

    Args:
        shape: Positive sizes.
        dtype: NKI dtype.
        buffer: The memory.
        name: For messages.
        address: (partition, byte offset) of on-chip memory; None lets the allocator choose.

    Raises:
        RuleViolationError: The shape or the address is impossible, or memory is full.
    """
    core = machine.current()
    if any(size <= 0 for size in shape) or not shape:
        violation("NKI-RANK", "nl.ndarray", "shape", shape, "positive sizes")
    if buffer in ON_CHIP:
        if len(shape) < 2:
            violation("NKI-RANK", "nl.ndarray", "shape", shape, "two dimensions or more on chip")
        if shape[0] > PARTITIONS:
            violation("NKI-PARTITIONS", "nl.ndarray", "shape[0]", shape[0], f"<= {PARTITIONS}")
    elif address is not None:
        violation("NKI-ADDRESS", "nl.ndarray", "address", address, "None in HBM")
    if buffer is SHARED_HBM and core.lnc > 1:
        return _shared(core, shape, dtype, name)
    storage = Storage(shape, dtype, buffer, name=name, precise=core.precise)
    if buffer in ON_CHIP:
        if address is not None:
            _place(core, storage, address)
        core.ledger.allocate(storage)
    return storage


def _shared(core: machine.Core, shape: tuple[int, ...], dtype: str, name: str) -> Storage:
    """Return the storage that both cores get for their n-th allocation in shared HBM."""
    position = core.shared_count
    core.shared_count += 1
    if position == len(core.shared):
        core.shared.append(Storage(shape, dtype, SHARED_HBM, name=name, precise=core.precise))
    storage: Storage = core.shared[position]
    if (storage.shape, storage.dtype) != (shape, dtype):
        violation(
            "NKI-SHARED-ORDER",
            "nl.ndarray",
            f"allocation {position} in shared_hbm on core {core.index}",
            (shape, dtype),
            f"{(storage.shape, storage.dtype)} as on the other core",
        )
    return storage


def _place(core: machine.Core, storage: Storage, address: Any) -> None:
    """Put a storage at an explicit address.

    Raises:
        RuleViolationError: The address is malformed or leaves the memory.
    """
    if not isinstance(address, tuple | list) or len(address) != 2:
        violation("NKI-ADDRESS", "nl.ndarray", "address", address, "(partition, byte offset)")
    partition, start = (int(part) for part in address)
    rows, capacity = storage.shape[0], core.ledger.capacity(storage.buffer)
    if partition < 0 or partition + rows > PARTITIONS:
        violation("NKI-ADDRESS", "nl.ndarray", "address partition", partition, PARTITIONS - rows)
    if start < 0 or start + storage.row_bytes > capacity:
        violation(
            "NKI-ADDRESS",
            "nl.ndarray",
            f"bytes {start} to {start + storage.row_bytes} of a {storage.buffer.value} partition",
            "outside",
            f"{capacity} on {core.target.name}",
        )
    if not legal_start(partition, rows):
        violation(
            "NKI-START-PARTITION", "nl.ndarray", "address", f"{rows} from {partition}", "see rule"
        )
    if storage.buffer is PSUM and start % core.target.psum_bank_bytes:
        violation("NKI-PSUM-BANK", "nl.ndarray", "address", start, core.target.psum_bank_bytes)
    storage.partition, storage.address = partition, start


def legal_start(start: int, count: int) -> bool:
    """Tell whether `count` partitions may start at `start`."""
    return start == 0 or (
        start % 32 == 0
        and start + count <= PARTITIONS
        and (count <= 32 or (count <= 64 and start == 64))
    )
