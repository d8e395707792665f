# SPDX-License-Identifier: Apache-2.0
"""Enums of `nki.isa`, with the documented names and values."""

from __future__ import annotations

import functools
from enum import Enum

from trnport.adapters.nki.simulator import machine

__all__ = [
    "dge_mode",
    "dma_engine",
    "engine",
    "get_nc_sub_version",
    "get_nc_version",
    "gpsimd_engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    "scalar_engine",
    "tensor_engine",
    "unknown_engine",
    "vector_engine",
]


class engine(Enum):  # noqa: N801 - the documented name
    """Engine that executes an instruction."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class reduce_cmd(Enum):  # noqa: N801
    """What an instruction does with the engine's accumulators."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):  # noqa: N801
    """Who generates DMA descriptors."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):  # noqa: N801
    """What an out-of-bounds dynamic index does."""

    error = 0
    skip = 1


class matmul_perf_mode(Enum):  # noqa: N801
    """Performance mode of the tensor engine."""

    none = "none"
    double_row = "double_row"


@functools.total_ordering
class nc_version(Enum):  # noqa: N801
    """NeuronCore generation; ordered."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: object) -> bool:
        if isinstance(other, nc_version):
            return self.value < other.value
        return NotImplemented


class dma_engine(Enum):  # noqa: N801
    """DMA engine of `sendrecv`."""

    dma = 1
    gpsimd_dma = 2


tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown


def get_nc_version() -> nc_version:
    """Return the generation of the target that is being simulated."""
    return nc_version(machine.current().target.generation)


def get_nc_sub_version() -> int:
    """Return the silicon revision of the target; always the first."""
    return 0
