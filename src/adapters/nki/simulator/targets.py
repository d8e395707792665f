# SPDX-License-Identifier: Apache-2.0
"""Hardware constants per target: one row per target, each number with the page it comes from.

Pages are titles of the public NKI documentation (SDK 2.32, NKI 0.6).
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Target:
    """Limits of one physical NeuronCore that decide whether a kernel is legal.

    Attributes:
        name: "trn2" or "trn3".
        generation: NeuronCore version; compared with `nisa.nc_version`.
        sbuf_bytes: SBUF bytes per partition that a kernel may use.
        sbuf_total_bytes: SBUF bytes per partition including what the runtime reserves.
        psum_bytes: PSUM bytes per partition.
        psum_bank_bytes: Bytes of one PSUM bank per partition.
        matmul_moving_max: Free elements of `moving` at most, by dst dtype.
        matmul_dst: Dtypes that a matmul may write.
        matmul_dtypes: Dtypes that a matmul may read.
    """

    name: str
    generation: int
    sbuf_bytes: int
    sbuf_total_bytes: int
    psum_bytes: int
    psum_bank_bytes: int
    matmul_moving_max: dict[str, int]
    matmul_dst: tuple[str, ...]
    matmul_dtypes: tuple[str, ...]

    @property
    def psum_banks(self) -> int:
        """PSUM banks per partition."""
        return self.psum_bytes // self.psum_bank_bytes


PARTITIONS = 128  # "Trainium/Inferentia2 architecture guide": 128 partitions in SBUF and PSUM
DMA_SOURCES_MAX = 16  # nki.isa.dma_compute: number of sources
VIEW_DIMS_MAX = 5  # NKI access patterns: one partition dimension and four free ones
REGISTER_BITS = 32  # nki.isa.register_alloc

_MATMUL_DTYPES = ("float8_e4m3", "float8_e5m2", "bfloat16", "float16", "tfloat32", "float32")

TARGETS = {
    "trn2": Target(
        name="trn2",
        generation=3,
        sbuf_bytes=212_984,  # usable part of 224 KiB: the allocator's table for gen3
        sbuf_total_bytes=224 * 1024,  # "Trainium2 architecture guide": 28 MiB over 128 partitions
        psum_bytes=16 * 1024,  # "Trainium2 architecture guide": 2 MiB over 128 partitions
        psum_bank_bytes=2048,  # nki.language.tile_size.psum_bank_fmax_bytes
        matmul_moving_max={"float32": 512},  # nki.isa.nc_matmul, tile size
        matmul_dst=("float32",),  # nki.isa.nc_matmul, data types
        matmul_dtypes=_MATMUL_DTYPES,
    ),
    "trn3": Target(
        name="trn3",
        generation=4,
        sbuf_bytes=245_752,  # usable part of 256 KiB: the allocator's table for gen4
        sbuf_total_bytes=256 * 1024,  # "Trainium3 architecture guide": 32 MiB over 128 partitions
        psum_bytes=16 * 1024,  # "Trainium3 architecture guide"
        psum_bank_bytes=2048,
        matmul_moving_max={"float32": 4096, "bfloat16": 8192},  # nki.isa.nc_matmul, tile size
        matmul_dst=("float32", "bfloat16"),
        matmul_dtypes=(*_MATMUL_DTYPES, "float8_e4m3fn"),
    ),
}


@attrs.frozen
class Rates:
    """Speeds of one physical NeuronCore, for estimates; nothing here was measured by us.

    Attributes:
        clocks: Cycles per second of each engine.
        hbm: Bytes per second of HBM, an equal share of the chip's.
        dma: Bytes per second of the core's DMA engines together.
    """

    clocks: dict[str, float]
    hbm: float
    dma: float


RATES = {
    "trn2": Rates(
        # "Trainium2 architecture guide": engine clocks
        clocks={"tensor": 2.4e9, "vector": 0.96e9, "scalar": 1.2e9, "gpsimd": 1.2e9},
        hbm=2.9e12 / 8,  # "Trainium2 architecture guide": a chip's HBM over its 8 cores
        dma=16 * 23e9,  # "Trainium2 architecture guide": 16 engines of 23 bytes per ns
    ),
    "trn3": Rates(
        # "Trainium3 architecture guide": engine clocks
        clocks={"tensor": 2.4e9, "vector": 1.2e9, "scalar": 1.2e9, "gpsimd": 1.2e9},
        hbm=4.9e12 / 8,  # "Trainium3 architecture guide": a chip's HBM over its 8 cores
        dma=16 * 33e9,  # "Trainium3 architecture guide": 16 engines of 33 bytes per ns
    ),
}

_ALIASES = {"gen3": "trn2", "gen4": "trn3"}


def target_named(name: str) -> Target:
    """Return the constants of a target.

    Args:
        name: "trn2" (or "gen3"), "trn3" (or "gen4").

    Raises:
        ValueError: The target is unknown.
    """
    found = TARGETS.get(_ALIASES.get(name, name))
    if found is None:
        raise ValueError(f"target is {name!r}; known targets: {', '.join(sorted(TARGETS))}")
    return found
