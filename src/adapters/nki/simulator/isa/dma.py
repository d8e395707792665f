# SPDX-License-Identifier: Apache-2.0
"""DMA instructions."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.simulator import check, machine
from trnport.adapters.nki.simulator.access import read, write
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import dge_mode as _dge
from trnport.adapters.nki.simulator.isa.enums import engine as _engine
from trnport.adapters.nki.simulator.isa.enums import oob_mode as _oob
from trnport.adapters.nki.simulator.memory import HBM, SBUF, SHARED_HBM
from trnport.adapters.nki.simulator.rules import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["dma_copy"]

_REACHED = (SBUF, HBM, SHARED_HBM)


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: Any = _oob.error,
    dge_mode: Any = _dge.unknown,
    engine: Any = _engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """Copy between HBM and SBUF."""
    check.require_buffer("dma_copy", "dst", dst, *_REACHED)
    check.require_buffer("dma_copy", "src", src, *_REACHED)
    if dst.size != src.size:
        violation("NKI-SHAPE", "dma_copy", "dst elements", dst.size, src.size)
    write(dst, read(src, "dma_copy"), "dma_copy")
    machine.current().counters.add("dma_copy", "dma", src.size, 0)
    return NkiInstruction("dma_copy")
