# SPDX-License-Identifier: Apache-2.0
"""What one core did: counts for the cost model, no predictions.

`count(...)` is the hook of every compute instruction; DMA and matmul have their own.
"""

from __future__ import annotations

import attrs

from trnport.adapters.nki.simulator import machine


@attrs.define
class EngineCount:
    """Work of one engine.

    Attributes:
        instructions: Instructions issued.
        elements: Free elements per partition over all instructions.
        cycles: Engine cycles under the published per-instruction rules.
    """

    instructions: int = 0
    elements: int = 0
    cycles: float = 0.0


@attrs.define
class Counters:
    """Counts of one core over one launch.

    Attributes:
        engines: Work per engine name ("tensor", "vector", "scalar", "gpsimd", "dma").
        instructions: Calls per instruction name.
        dma_bytes: Bytes moved per (source memory, destination memory), "hbm" or "sbuf".
        dma_descriptors: Contiguous runs over all transfers.
        dma_shortest_run: Bytes of the shortest run; 0 before the first transfer.
        pe_cycles: Matmul cycles: free elements of `moving`, at least 64, four times for fp32.
        pe_macs: Multiply-adds the array could do in those cycles' useful columns (128 x 128 x N).
        pe_useful_macs: Multiply-adds of the operands' real sizes (K x M x N).
        sbuf_peak: Most SBUF bytes per partition in use at once.
        psum_peak: Most PSUM bytes per partition in use at once.
        waived: Violations per rule that a launch with `strict=False` let pass.
    """

    engines: dict[str, EngineCount] = attrs.field(factory=dict)
    instructions: dict[str, int] = attrs.field(factory=dict)
    dma_bytes: dict[tuple[str, str], int] = attrs.field(factory=dict)
    dma_descriptors: int = 0
    dma_shortest_run: int = 0
    pe_cycles: float = 0.0
    pe_macs: int = 0
    pe_useful_macs: int = 0
    sbuf_peak: int = 0
    psum_peak: int = 0
    waived: dict[str, int] = attrs.field(factory=dict)

    def add(self, instruction: str, engine: str, elements: int, cycles: float) -> None:
        """Count one instruction."""
        calls = self.instructions
        calls[instruction] = calls.get(instruction, 0) + 1
        work = self.engines.get(engine)
        if work is None:
            work = self.engines[engine] = EngineCount()
        work.instructions += 1
        work.elements += elements
        work.cycles += cycles

    def transfer(self, source: str, destination: str, size: int, runs: int, run: int) -> None:
        """Count one DMA transfer.

        Args:
            source: "hbm" or "sbuf".
            destination: The same.
            size: Bytes moved.
            runs: Contiguous runs (descriptors).
            run: Bytes of one run.
        """
        pair = (source, destination)
        self.dma_bytes[pair] = self.dma_bytes.get(pair, 0) + size
        self.dma_descriptors += runs
        if not self.dma_shortest_run or run < self.dma_shortest_run:
            self.dma_shortest_run = run


def count(instruction: str, engine: str, elements: int, cycles: float | None = None) -> None:
    """Count one compute instruction on the current core.

    Args:
        instruction: Name of the instruction.
        engine: "vector", "scalar", "gpsimd" or "tensor".
        elements: Free elements per partition.
        cycles: Engine cycles; one per element when not given.
    """
    machine.current().counters.add(
        instruction, engine, elements, elements if cycles is None else cycles
    )
