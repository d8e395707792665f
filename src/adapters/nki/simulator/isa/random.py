# SPDX-License-Identifier: Apache-2.0
"""Random numbers.

The engines' sequences are not documented, so a kernel must not depend on them: these come from
numpy, one generator per core, with a fixed seed at the start of a launch.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import check, machine
from trnport.adapters.nki.simulator.access import read, write
from trnport.adapters.nki.simulator.counters import count
from trnport.adapters.nki.simulator.dtypes import FLOATS, INTEGERS
from trnport.adapters.nki.simulator.handles import NkiInstruction
from trnport.adapters.nki.simulator.isa.enums import engine as _engine
from trnport.adapters.nki.simulator.operands import pick_engine, quiet, scalar_or_column, tile
from trnport.adapters.nki.simulator.rules_isa import violation
from trnport.adapters.nki.simulator.steps import require_reach
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["dropout", "rand2", "rng", "set_rng_seed"]

_generators: weakref.WeakKeyDictionary[machine.Core, np.random.Generator] = (
    weakref.WeakKeyDictionary()
)


def _generator() -> np.random.Generator:
    core = machine.current()
    found = _generators.get(core)
    if found is None:
        found = _generators[core] = np.random.default_rng(core.index)
    return found


@quiet
def rng(dst: NkiTensor, engine: Any = _engine.vector, name: str | None = None) -> NkiInstruction:
    """Fill a tile with random bits.

    Args:
        dst: Integer tile in SBUF or PSUM.
        engine: vector, or gpsimd (no PSUM).
        name: Ignored.
    """
    tile("rng", "dst", dst)
    check.require_dtype("rng", "dst", dst, INTEGERS)
    where = pick_engine("rng", engine, "vector", ("vector", "gpsimd"))
    require_reach("rng", where, dst=dst)
    kind = np.dtype(dst.dtype)
    limits = np.iinfo(kind)
    bits = _generator().integers(limits.min, limits.max, dst.shape, kind, endpoint=True)
    write(dst, bits, "rng")
    count("rng", where, dst.free_size)
    return NkiInstruction("rng")


@quiet
def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Seed the generator; one seed gives one sequence.

    Args:
        src_seeds: Tile (1, 1) of a 32-bit dtype in SBUF or PSUM.
        name: Ignored.
    """
    me = "set_rng_seed"
    tile(me, "src_seeds", src_seeds)
    if src_seeds.shape[0] != 1 or src_seeds.free_size != 1:
        violation("NKI-SHAPE", me, "src_seeds", src_seeds.shape, "(1, 1)")
    check.require_dtype(me, "src_seeds", src_seeds, ("int32", "uint32", "float32"))
    seed = int(np.ascontiguousarray(read(src_seeds, me)).view(np.uint32).reshape(-1)[0])
    _generators[machine.current()] = np.random.default_rng(seed)
    count(me, "vector", 1)
    return NkiInstruction(me)


@quiet
def rand2(dst: NkiTensor, min: Any, max: Any, name: str | None = None) -> NkiInstruction:
    """Fill a tile with uniform numbers; NeuronCore-v4.

    Args:
        dst: Tile in SBUF or PSUM.
        min: Number or (P, 1) float32 tile.
        max: Number or (P, 1) float32 tile, greater than `min`.
        name: Ignored.
    """
    check.require_generation("rand2", 4)
    tile("rand2", "dst", dst)
    low = scalar_or_column("rand2", "min", min, dst)
    high = scalar_or_column("rand2", "max", max, dst)
    if not (low < high).all():
        violation("NKI-PARAMETER", "rand2", "min, max", f"{min}, {max}", "min < max")
    write(dst, low + (high - low) * _generator().random(dst.shape, np.float32), "rand2")
    count("rand2", "vector", dst.free_size)
    return NkiInstruction("rand2")


@quiet
def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> NkiInstruction:
    """Replace elements by zero with a probability.

    Args:
        dst: Tile of the dtype of `data`.
        data: Tile with equal partitions and elements per partition.
        prob: Number or (P, 1) float tile, float32 for integer data.
        name: Ignored.
    """
    me = "dropout"
    tile(me, "dst", dst)
    tile(me, "data", data)
    check.require_same_free(me, dst, data)
    check.require_same_dtype(me, dst, data)
    kinds = tuple(sorted(FLOATS)) if data.dtype in FLOATS else ("float32",)
    limit = scalar_or_column(me, "prob", prob, data, kinds)
    values = read(data, me)
    drop = _generator().random(data.shape, np.float32) < limit
    write(dst, np.where(drop, np.zeros((), values.dtype), values), me)
    count(me, "vector", data.free_size)
    return NkiInstruction(me)
