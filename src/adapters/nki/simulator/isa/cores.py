# SPDX-License-Identifier: Apache-2.0
"""Instructions between the two cores of a logical core."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.simulator import check, machine
from trnport.adapters.nki.simulator.access import read, write
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import dma_engine as _dma_engine
from trnport.adapters.nki.simulator.isa.enums import engine as _engine
from trnport.adapters.nki.simulator.memory import SBUF, SHARED_HBM
from trnport.adapters.nki.simulator.rules import Rule, add, violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["core_barrier", "sendrecv"]

_GPSIMD_DMA_BYTES = {4: 1024, 2: 512, 1: 256}  # per partition, by bytes of an element

add(
    Rule(
        "NKI-CORES",
        "Exchange needs a launch on two cores, kernel[2].",
        "nki.isa.core_barrier, nki.isa.sendrecv: notes",
    ),
    Rule(
        "NKI-BARRIER-ALONE",
        "A barrier needs a launch on two cores, kernel[2]; alone it would be nothing.",
        "nki.isa.core_barrier: notes",
        relaxed=True,
    ),
    Rule(
        "NKI-SENDRECV-SIZE",
        "gpsimd_dma moves up to 1024, 512 or 256 bytes per partition of 32, 16 or 8-bit types.",
        "nki.isa.sendrecv: dma_engine",
    ),
)

_TWO = "2: call kernel[2]"


def core_barrier(
    data: NkiTensor,
    cores: tuple[int, ...] = (0, 1),
    engine: Any = _engine.gpsimd,
    name: str | None = None,
) -> NkiInstruction:
    """Wait until both cores are here.

    Args:
        data: Tensor in shared HBM that both cores use.
        cores: (0, 1).
        engine: Engine that waits.
        name: Unused here.
    """
    check.require_generation("core_barrier", 3)
    check.require_buffer("core_barrier", "data", data, SHARED_HBM)
    check.require_parameter("core_barrier", "cores", tuple(cores), ((0, 1),))
    core = machine.current()
    if core.exchange is None:
        violation("NKI-BARRIER-ALONE", "core_barrier", "cores of the launch", core.lnc, _TWO)
    else:
        core.exchange.meet(core.index, ("core_barrier", data.storage.name or data.storage.shape))
    return NkiInstruction("core_barrier")


def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: Any = _dma_engine.dma,
    name: str | None = None,
) -> NkiInstruction:
    """Send a tile to one core and receive one at the same time.

    Args:
        src: SBUF tile to send.
        dst: SBUF tile of the same shape and dtype.
        send_to_rank: 0 or 1.
        recv_from_rank: 0 or 1.
        pipe_id: Same on both cores.
        dma_engine: `gpsimd_dma` is faster and limited in size.
        name: Unused here.
    """
    check.require_generation("sendrecv", 3)
    check.require_buffer("sendrecv", "src", src, SBUF)
    check.require_buffer("sendrecv", "dst", dst, SBUF)
    check.require_same_shape("sendrecv", dst, src)
    check.require_same_dtype("sendrecv", dst, src)
    check.require_parameter("sendrecv", "send_to_rank", send_to_rank, (0, 1))
    check.require_parameter("sendrecv", "recv_from_rank", recv_from_rank, (0, 1))
    if dma_engine is _dma_engine.gpsimd_dma:
        size, most = src.free_size * src.itemsize, _GPSIMD_DMA_BYTES[src.itemsize]
        if size > most:
            violation("NKI-SENDRECV-SIZE", "sendrecv", "bytes per partition", size, most)
    core = _meeting_core("sendrecv")
    payload = (send_to_rank, read(src, "sendrecv").copy())
    met = core.exchange.meet(core.index, ("sendrecv", pipe_id), payload)
    receiver, values = met[recv_from_rank]
    if receiver != core.index:
        violation(
            "NKI-PARAMETER", "sendrecv", "recv_from_rank", recv_from_rank, "a core that sends here"
        )
    write(dst, values, "sendrecv")
    size = dst.size * dst.itemsize
    core.counters.add("sendrecv", "dma", dst.size, 0)
    core.counters.transfer("sbuf", "sbuf", size, dst.shape[0], size // dst.shape[0])
    return NkiInstruction("sendrecv")


def _meeting_core(instruction: str) -> machine.Core:
    core = machine.current()
    if core.exchange is None:
        violation("NKI-CORES", instruction, "cores of the launch", core.lnc, _TWO)
    return core
