# SPDX-License-Identifier: Apache-2.0
"""What one core does in a call, and the time that this takes at least."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self

import attrs

from trnport.adapters.nki.counting import Launch
from trnport.adapters.nki.simulator.cycles import ISSUE
from trnport.adapters.nki.simulator.targets import PARTITIONS, RATES, Rates

PEAK_MACS = PARTITIONS * PARTITIONS
"""Multiply-adds of the tensor engine in a cycle, of 16-bit data."""


@attrs.frozen
class CoreCost:
    """Counts of one physical core.

    Attributes:
        moved: Bytes by source and destination, such as "hbm->sbuf".
        descriptors: Contiguous runs of all transfers.
        shortest_run: Bytes of the shortest; 0 without transfers.
        cycles: Cycles of each compute engine.
        instructions: Instructions of each compute engine.
        macs: Multiply-adds of the operands' real sizes.
        array_macs: Multiply-adds of the whole array in the same matrix products.
        sbuf_peak: Bytes per partition.
        psum_peak: Bytes per partition.
    """

    moved: Mapping[str, int] = attrs.field(factory=dict)
    descriptors: int = 0
    shortest_run: int = 0
    cycles: Mapping[str, float] = attrs.field(factory=dict)
    instructions: Mapping[str, int] = attrs.field(factory=dict)
    macs: int = 0
    array_macs: int = 0
    sbuf_peak: int = 0
    psum_peak: int = 0

    @classmethod
    def of(cls, counters: Any) -> Self:
        """The simulator's counts of one launch."""
        compute = {name: work for name, work in counters.engines.items() if name != "dma"}
        return cls(
            moved={f"{a}->{b}": size for (a, b), size in counters.dma_bytes.items()},
            descriptors=counters.dma_descriptors,
            shortest_run=counters.dma_shortest_run,
            cycles={name: work.cycles for name, work in compute.items()},
            instructions={name: work.instructions for name, work in compute.items()},
            macs=counters.pe_useful_macs,
            array_macs=counters.pe_macs,
            sbuf_peak=counters.sbuf_peak,
            psum_peak=counters.psum_peak,
        )

    @property
    def hbm_bytes(self) -> int:
        """Bytes read from HBM and written to it."""
        return sum(size * pair.split("->").count("hbm") for pair, size in self.moved.items())

    def seconds(self, rates: Rates) -> dict[str, float]:
        """Least time of each engine, of HBM and of DMA.

        An engine needs its cycles, and 64 of them between two instructions.
        """
        times = {"hbm": self.hbm_bytes / rates.hbm, "dma": sum(self.moved.values()) / rates.dma}
        for engine, cycles in self.cycles.items():
            issued = ISSUE * self.instructions.get(engine, 0)
            if engine in rates.clocks:
                times[engine] = max(cycles, issued) / rates.clocks[engine]
        return times

    def numbers(self) -> dict[str, Fraction]:
        """All counts by name, exact, for :meth:`from_numbers`."""
        flat: dict[str, Fraction] = {}
        for field, value in attrs.asdict(self).items():
            items = value.items() if isinstance(value, dict) else [("", value)]
            flat |= {f"{field}/{key}": Fraction(number) for key, number in items}
        return flat

    @classmethod
    def from_numbers(cls, flat: Mapping[str, Fraction]) -> Self:
        """The inverse of :meth:`numbers`."""
        values: dict[str, Any] = {}
        for name, number in flat.items():
            field, key = name.split("/")
            plain = float(number) if field == "cycles" else int(number)
            if key:
                values.setdefault(field, {})[key] = plain
            else:
                values[field] = plain
        return cls(**values)


@attrs.frozen
class Bound:
    """A least time and what sets it.

    Attributes:
        seconds: At least so long.
        by: "tensor", "vector", "scalar", "gpsimd", "hbm" or "dma"; "" for nothing.
    """

    seconds: float
    by: str


def bound(cores: tuple[CoreCost, ...], target: str) -> Bound:
    """The longest of all times of all cores, which work at the same time."""
    times = [
        (seconds, name) for core in cores for name, seconds in core.seconds(RATES[target]).items()
    ]
    seconds, name = max(times, default=(0.0, ""))
    return Bound(seconds, name if seconds else "")


def ridge(target: str) -> float:
    """Floating-point operations per byte of HBM above which a 16-bit product is compute-bound."""
    rates = RATES[target]
    return 2 * PEAK_MACS * rates.clocks["tensor"] / min(rates.hbm, rates.dma)


def describe(launch: Launch, target: str) -> dict[str, Any]:
    """A launch as plain data: its kernel, counts of each core, and its bound."""
    cores = tuple(CoreCost.of(core) for core in launch.cores)
    least = bound(cores, target)
    return {
        "kernel": launch.kernel,
        "cores": [attrs.asdict(core) for core in cores],
        "bound_seconds": least.seconds,
        "bound_by": least.by,
    }
