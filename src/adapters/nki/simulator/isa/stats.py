# SPDX-License-Identifier: Apache-2.0
"""Mean and variance."""

from __future__ import annotations

import numpy as np

from trnport.adapters.nki.simulator.access import read_f32, write
from trnport.adapters.nki.simulator.alu import Array
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.operands import quiet, tile
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["bn_aggr", "bn_stats"]

_STATS_MAX = 512  # nki.language.tile_size.bn_stats_fmax


@quiet
def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Write count, mean and variance * count of the even, then of the odd elements.

    Args:
        dst: Tile with 6 elements per partition.
        data: Tile with at most 512 elements per partition.
        name: Ignored.
    """
    me = "bn_stats"
    tile(me, "dst", dst)
    tile(me, "data", data)
    free = data.free_size
    if free > _STATS_MAX:
        violation("NKI-FREE-SIZE", me, "data", f"{free} elements per partition", _STATS_MAX)
    _require_row(me, dst, data, 6)
    values = read_f32(data, me).reshape(data.shape[0], -1)
    write(dst, np.concatenate([_triple(values[:, 0::2]), _triple(values[:, 1::2])], 1), me)
    count(me, "vector", free)
    return NkiInstruction(me)


def _triple(values: Array) -> Array:
    """(count, mean, variance * count) per row; zeros for no elements."""
    rows, number = values.shape
    result = np.zeros((rows, 3), np.float32)
    if number:
        mean = values.sum(1, dtype=np.float32) / np.float32(number)
        result[:, 0] = number
        result[:, 1] = mean
        result[:, 2] = np.square(values - mean[:, None]).sum(1, dtype=np.float32)
    return result


def _require_row(instruction: str, dst: NkiTensor, data: NkiTensor, size: int) -> None:
    if dst.shape[0] != data.shape[0] or dst.free_size != size:
        limit = f"{data.shape[0]} partitions of {size} elements"
        violation("NKI-SHAPE", instruction, "dst", dst.shape, limit)


@quiet
def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Join triples of bn_stats into mean and variance.

    Args:
        dst: Tile with 2 elements per partition.
        data: Tile with a multiple of 3 elements per partition.
        name: Ignored.
    """
    me = "bn_aggr"
    tile(me, "dst", dst)
    tile(me, "data", data)
    if data.free_size % 3:
        violation("NKI-BN-TRIPLES", me, "data", f"{data.free_size} elements", "a multiple of 3")
    _require_row(me, dst, data, 2)
    triples = read_f32(data, me).reshape(data.shape[0], -1, 3)
    counts, means, spreads = triples[..., 0], triples[..., 1], triples[..., 2]
    total = counts.sum(1, dtype=np.float32)
    mean = (counts * means).sum(1, dtype=np.float32) / total
    apart = counts * np.square(means - mean[:, None])
    variance = (spreads + apart).sum(1, dtype=np.float32) / total
    write(dst, np.stack([mean, variance], 1), me)
    count(me, "vector", data.free_size)
    return NkiInstruction(me)
