# SPDX-License-Identifier: Apache-2.0
"""Every compute instruction counts once, on its engine, with its elements and cycles."""

import numpy as np
import pytest

from tests.adapters.nki.tiles import tile
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator import machine

BF16 = "bfloat16"


def t(*shape, dtype="float32"):
    return tile(np.ones(shape), dtype)


def column(dtype="float32"):
    return t(2, 1, dtype=dtype)


def ranged():
    nisa.range_select(t(2, 8), t(2, 8), nl.less, nl.less, column(), column())


def local_gather():
    nisa.local_gather(t(16, 16), t(16, 8), t(16, 1, dtype="uint16"))


def topk():
    out = (t(16, 4, dtype=BF16), t(16, 4, dtype="uint32"))
    nisa.topk(*out, t(16, 2, dtype=BF16), 32)


#: instruction, engine, free elements, cycles
CASES = [
    (lambda: nisa.tensor_copy(t(2, 8), t(2, 8)), "tensor_copy", "vector", 8, 8),
    (lambda: nisa.memset(t(2, 8), 0.0), "memset", "vector", 8, 8),
    (lambda: nisa.iota(t(2, 8), [[1, 8]]), "iota", "gpsimd", 8, 8),
    (lambda: nisa.reciprocal(t(2, 8), t(2, 8)), "reciprocal", "vector", 8, 64),
    (lambda: nisa.reciprocal(t(2, 9), t(2, 9)), "reciprocal", "vector", 9, 72),
    (
        lambda: nisa.tensor_tensor(t(2, 8), t(2, 8), t(2, 8), nl.add),
        "tensor_tensor",
        "vector",
        8,
        16,
    ),
    (lambda: nisa.tensor_scalar(t(2, 8), t(2, 8), nl.add, 1.0), "tensor_scalar", "vector", 8, 8),
    (
        lambda: nisa.scalar_tensor_tensor(t(2, 8), t(2, 8), nl.add, 1.0, nl.add, t(2, 8)),
        "scalar_tensor_tensor",
        "vector",
        8,
        16,
    ),
    (
        lambda: nisa.tensor_copy_predicated(t(2, 8), t(2, 8), t(2, 8, dtype="uint8")),
        "tensor_copy_predicated",
        "vector",
        8,
        16,
    ),
    (
        lambda: nisa.affine_select(t(2, 8), [[1, 8]], 0, t(2, 8), 0.0),
        "affine_select",
        "gpsimd",
        8,
        8,
    ),
    (ranged, "range_select", "vector", 8, 8),
    (
        lambda: nisa.select_reduce(t(2, 8), t(2, 8, dtype="uint8"), t(2, 8), 0.0),
        "select_reduce",
        "vector",
        8,
        16,
    ),
    (lambda: nisa.tensor_reduce(t(2, 1), nl.add, t(2, 8), 1), "tensor_reduce", "vector", 8, 8),
    (
        lambda: nisa.tensor_scalar_reduce(t(2, 8), t(2, 8), nl.add, 1.0, nl.add),
        "tensor_scalar_reduce",
        "vector",
        8,
        8,
    ),
    (
        lambda: nisa.tensor_partition_reduce(t(1, 8), nl.add, t(2, 8)),
        "tensor_partition_reduce",
        "gpsimd",
        8,
        8,
    ),
    (
        lambda: nisa.tensor_scalar_cumulative(t(2, 8), t(2, 8), nl.add, nl.add, 1.0),
        "tensor_scalar_cumulative",
        "vector",
        8,
        8,
    ),
    (
        lambda: nisa.tensor_tensor_scan(t(2, 8), t(2, 8), t(2, 8), 0.0, nl.add, nl.add),
        "tensor_tensor_scan",
        "vector",
        8,
        16,
    ),
    (lambda: nisa.bn_stats(t(2, 6), t(2, 8)), "bn_stats", "vector", 8, 8),
    (lambda: nisa.bn_aggr(t(2, 2), t(2, 6)), "bn_aggr", "vector", 6, 6),
    (lambda: nisa.max8(t(2, 8), t(2, 9)), "max8", "vector", 9, 9),
    (
        lambda: nisa.nc_find_index8(t(2, 8, dtype="uint32"), t(2, 9), t(2, 8)),
        "nc_find_index8",
        "vector",
        9,
        9,
    ),
    (
        lambda: nisa.nc_match_replace8(t(2, 9), t(2, 9), t(2, 8), 0.0),
        "nc_match_replace8",
        "vector",
        9,
        9,
    ),
    (topk, "topk", "gpsimd", 2, 4 * 32 + 4),
    (
        lambda: nisa.nonzero_with_count(t(2, 9, dtype="int32"), t(2, 8)),
        "nonzero_with_count",
        "gpsimd",
        8,
        8,
    ),
    (lambda: nisa.sequence_bounds(t(1, 2, 8), t(1, 8)), "sequence_bounds", "gpsimd", 8, 8),
    (
        lambda: nisa.nc_stream_shuffle(t(32, 8), t(32, 8), [0] * 32),
        "nc_stream_shuffle",
        "vector",
        8,
        8,
    ),
    (local_gather, "local_gather", "gpsimd", 16, 16),
    (
        lambda: nisa.nc_n_gather(t(2, 8), t(2, 8), t(2, 8, dtype="uint32")),
        "nc_n_gather",
        "gpsimd",
        8,
        8,
    ),
    (lambda: nisa.activation(t(2, 8), nl.copy, t(2, 8)), "activation", "scalar", 8, 8),
    (lambda: nisa.exponential(t(2, 8), t(2, 8)), "exponential", "vector", 8, 2),
    (
        lambda: nisa.quantize_mx(
            t(32, 2, dtype="float8_e5m2_x4"), t(32, 8, dtype=BF16), t(4, 2, dtype="uint8")
        ),
        "quantize_mx",
        "vector",
        8,
        2,
    ),
    (lambda: nisa.rng(t(2, 8, dtype="int8")), "rng", "vector", 8, 8),
    (lambda: nisa.dropout(t(2, 8), t(2, 8), 0.5), "dropout", "vector", 8, 8),
    (lambda: nisa.rand2(t(2, 8), 0.0, 1.0), "rand2", "vector", 8, 8),
]


@pytest.mark.parametrize(
    ("issue", "name", "engine", "elements", "cycles"), CASES, ids=[case[1] for case in CASES]
)
def test_an_instruction_counts_once(issue, name, engine, elements, cycles):
    with machine.session("trn3") as core:
        issue()
    assert core.counters.instructions == {name: 1}
    assert list(core.counters.engines) == [engine]
    work = core.counters.engines[engine]
    assert (work.instructions, work.elements, work.cycles) == (1, elements, cycles)
