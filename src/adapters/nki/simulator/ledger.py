# SPDX-License-Identifier: Apache-2.0
"""How much of SBUF and PSUM a core uses."""

from __future__ import annotations

import weakref

from trnport.adapters.nki.simulator.counters import Counters
from trnport.adapters.nki.simulator.memory import NOTHING, PSUM, SBUF, MemoryRegion, Storage
from trnport.adapters.nki.simulator.rules import Rule, add, violation
from trnport.adapters.nki.simulator.targets import Target

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
        relaxed=True,  # a compiler sees that a named tensor is not used again
    ),
)


class Ledger:
    """Use of one core's SBUF and PSUM.

    A tensor is live as long as a Python name refers to it. Automatic tensors add up; explicit ones
    count by the bytes they cover. Explicit tensors may overlap: writing one makes the values of the
    other unwritten, so that only a real conflict is reported.
    """

    def __init__(self, target: Target, counters: Counters) -> None:
        self.target = target
        self.counters = counters
        self.automatic = {SBUF: 0, PSUM: 0}
        self.explicit: dict[MemoryRegion, list[weakref.ref[Storage]]] = {SBUF: [], PSUM: []}

    def allocate(self, storage: Storage) -> None:
        """Account for an on-chip storage.

        Raises:
            RuleViolationError: It does not fit.
        """
        buffer = storage.buffer
        if storage.address is None:
            used = self.automatic[buffer] + storage.row_bytes
        else:
            used = self.automatic[buffer]
            self._link(storage)
        if self.explicit[buffer]:
            used += self._covered(buffer)
        if used > self.capacity(buffer):
            violation(
                "NKI-SBUF-CAPACITY" if buffer is SBUF else "NKI-PSUM-CAPACITY",
                "nl.ndarray",
                f"{buffer.value} in use with {storage.name or storage.shape}",
                f"{used} bytes per partition",
                f"{self.capacity(buffer)} on {self.target.name}",
            )
        if storage.address is None:
            self.automatic[buffer] += storage.row_bytes
            storage.ledger = self
        if buffer is SBUF:
            self.counters.sbuf_peak = max(self.counters.sbuf_peak, used)
        else:
            self.counters.psum_peak = max(self.counters.psum_peak, used)

    def capacity(self, buffer: MemoryRegion) -> int:
        """Bytes per partition of SBUF or PSUM."""
        return self.target.sbuf_bytes if buffer is SBUF else self.target.psum_bytes

    def release(self, storage: Storage) -> None:
        """Forget an automatic storage that nobody refers to any more."""
        self.automatic[storage.buffer] -= storage.row_bytes

    def _link(self, storage: Storage) -> None:
        alive = []
        for reference in self.explicit[storage.buffer]:
            other = reference()
            if other is None:
                continue
            alive.append(reference)
            if other.overlaps(storage):
                other.aliases.append(weakref.ref(storage))
                storage.aliases.append(reference)
                if other.mask is not NOTHING:
                    storage.holders.append(reference)
        alive.append(weakref.ref(storage))
        self.explicit[storage.buffer] = alive

    def _covered(self, buffer: MemoryRegion) -> int:
        """Bytes per partition under live explicit tensors, overlaps counted once."""
        covered = end = 0
        spans = [
            (storage.address or 0, storage.row_bytes)
            for storage in (reference() for reference in self.explicit[buffer])
            if storage is not None
        ]
        for start, size in sorted(spans):
            covered += max(0, start + size - max(start, end))
            end = max(end, start + size)
        return covered
