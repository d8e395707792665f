# SPDX-License-Identifier: Apache-2.0
"""`nl.tile_size`: limits of the target being simulated; trn2's outside a kernel."""

from __future__ import annotations

from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.targets import PARTITIONS, TARGETS, Target

_FLOAT32 = 4


def _target() -> Target:
    core = machine.current_or_none()
    return TARGETS["trn2"] if core is None else core.target


class TileSize:
    """Hardware tile sizes; bytes and elements are per partition unless said otherwise."""

    pmax = PARTITIONS
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def psum_bank_fmax_bytes(self) -> int:
        """Bytes of one PSUM bank."""
        return _target().psum_bank_bytes

    @property
    def psum_bank_fmax(self) -> int:
        """Float32 elements of one PSUM bank."""
        return self.psum_bank_fmax_bytes // _FLOAT32

    @property
    def psum_fmax(self) -> int:
        """Deprecated name of `psum_bank_fmax`."""
        return self.psum_bank_fmax

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks."""
        return _target().psum_banks

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Usable SBUF bytes."""
        return _target().sbuf_bytes

    @property
    def sbuf_fmax(self) -> int:
        """Usable SBUF, in float32 elements."""
        return self.sbuf_fmax_bytes // _FLOAT32

    @property
    def total_available_sbuf_size(self) -> int:
        """Deprecated name of `sbuf_fmax_bytes`."""
        return self.sbuf_fmax_bytes

    @property
    def sbuf_size_bytes(self) -> int:
        """SBUF bytes over all partitions."""
        return _target().sbuf_total_bytes * PARTITIONS


tile_size = TileSize()
