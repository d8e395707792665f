# SPDX-License-Identifier: Apache-2.0
"""Storage behind tensors: bytes, which of them were written, and the use of SBUF and PSUM."""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.counters import Counters
from trnport.adapters.nki.simulator.dtypes import Array, itemsize, stored_dtype
from trnport.adapters.nki.simulator.rules import Rule, add, violation
from trnport.adapters.nki.simulator.targets import PARTITIONS, Target

add(
    Rule(
        "NKI-SBUF-CAPACITY",
        "Live SBUF tensors must fit a partition's usable bytes.",
        "nki.language.tile_size: sbuf_fmax_bytes",
    ),
    Rule(
        "NKI-PSUM-CAPACITY",
        "Live PSUM tensors must fit the 8 banks of 2 KiB per partition.",
        "nki.language.tile_size: psum_num_banks, psum_bank_fmax_bytes",
    ),
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
NOTHING = np.zeros(0, np.uint8)  # mask of a storage nobody wrote yet


class Storage:
    """Memory of one allocation.

    Attributes:
        raw: The bytes as stored on this machine, uint8, flat.
        mask: None when every byte was written, `NOTHING` when none was, else uint8 per byte: 0 for
            never written, 255 for written.
        matmul: PSUM only; uint8 per byte: 1 at the first byte of an element whose last writer was
            a matmul, 2 where it was another instruction, 0 where nobody wrote.
        shape: Shape at allocation.
        dtype: NKI dtype at allocation.
        buffer: The memory.
        row: Elements per partition (on-chip), or of the last dimensions after the first (HBM).
        partition: First partition (on-chip).
        address: Byte offset in the partition, None when allocated automatically.
        aliases: Live storages at overlapping addresses.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "aliases",
        "buffer",
        "dtype",
        "ledger",
        "mask",
        "matmul",
        "name",
        "partition",
        "precise",
        "raw",
        "row",
        "row_bytes",
        "shape",
        "size",
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
        self.aliases: list[Storage] = []
        self.ledger: Ledger | None = None
        self.matmul: Array | None = None
        self.mask: Array | None = None
        if raw is None:
            stored = stored_dtype(dtype, precise)
            filled = np.full(
                self.size, np.nan if stored.kind not in "iub" else _FRESH_INTEGER, np.float32
            )
            self.raw: Array = filled.astype(stored).view(np.uint8)
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

    def __del__(self) -> None:
        ledger = getattr(self, "ledger", None)
        if ledger is not None:
            ledger.release(self)


class Ledger:
    """Use of one core's SBUF and PSUM.

    A tensor is live as long as a Python name refers to it. Automatic tensors add up; explicit ones
    count by the bytes they cover.
    """

    def __init__(self, target: Target, counters: Counters) -> None:
        self.target = target
        self.counters = counters
        self.automatic = {SBUF: 0, PSUM: 0}

    def allocate(self, storage: Storage) -> None:
        """Account for an on-chip storage.

        Raises:
            RuleViolationError: It does not fit.
        """
        buffer = storage.buffer
        used = self.automatic[buffer] + storage.row_bytes
        capacity = self.target.sbuf_bytes if buffer is SBUF else self.target.psum_bytes
        if used > capacity:
            violation(
                "NKI-SBUF-CAPACITY" if buffer is SBUF else "NKI-PSUM-CAPACITY",
                "nl.ndarray",
                f"{buffer.value} in use with {storage.name or storage.shape}",
                f"{used} bytes per partition",
                f"{capacity} on {self.target.name}",
            )
        self.automatic[buffer] = used
        storage.ledger = self
        if buffer is SBUF:
            self.counters.sbuf_peak = max(self.counters.sbuf_peak, used)
        else:
            self.counters.psum_peak = max(self.counters.psum_peak, used)

    def release(self, storage: Storage) -> None:
        """Forget a storage that nobody refers to any more."""
        self.automatic[storage.buffer] -= storage.row_bytes


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
    storage = Storage(shape, dtype, buffer, name=name, precise=core.precise)
    if buffer in ON_CHIP:
        if buffer is PSUM:
            storage.matmul = np.zeros(storage.raw.size, np.uint8)
        core.ledger.allocate(storage)
    return storage
