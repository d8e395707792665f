# SPDX-License-Identifier: Apache-2.0
"""Moves across partitions and gathers, against plain loops."""

import random

import pytest

from tests.adapters.nki.tiles import fresh, indices, plain, tile
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator.rules import RuleViolationError

ROTATE = [(i - 1) % 32 for i in range(32)]


# --- nc_stream_shuffle --------------------------------------------------------------------------
@pytest.mark.parametrize("partitions", [32, 64, 96, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_shuffle_applies_one_mask_to_every_quadrant(trn2, partitions, dtype):
    rows = [[p, 1000 - p] for p in range(partitions)]
    dst = fresh((partitions, 2), dtype)
    nisa.nc_stream_shuffle(dst, tile(rows, dtype), ROTATE)
    want = plain(tile(rows, dtype))
    for p, f in indices((partitions, 2)):
        assert plain(dst)[p, f] == want[p // 32 * 32 + ROTATE[p % 32], f]


def test_shuffle_keeps_partitions_marked_255_and_every_bit(trn2):
    mask = [255] * 32
    mask[3], mask[4] = 7, 7
    dst = tile([[2**24 + 1 + p] for p in range(32)], "int32")
    nisa.nc_stream_shuffle(dst, tile([[2**30 + 1 + p] for p in range(32)], "int32"), mask)
    for p in range(32):
        assert plain(dst)[p, 0] == (2**30 + 8 if p in {3, 4} else 2**24 + 1 + p)


def test_partitions_marked_255_stay_unwritten(trn2):
    mask = [0, 255, *[0] * 30]
    dst = fresh((32, 1))
    nisa.nc_stream_shuffle(dst, tile([[1.0]] * 32), mask)
    nisa.tensor_copy(fresh((1, 1)), dst[0:1])
    with pytest.raises(RuleViolationError, match="NKI-UNWRITTEN"):
        nisa.nc_stream_shuffle(fresh((32, 1)), dst, [1] * 32)


def test_only_the_partitions_that_a_mask_names_have_to_be_written(trn2):
    src = fresh((32, 1))
    nisa.memset(src[0:1], 5.0)
    dst = fresh((32, 1))
    nisa.nc_stream_shuffle(dst, src, [0] * 32)
    assert set(plain(dst)[:, 0]) == {5.0}
    with pytest.raises(RuleViolationError, match="NKI-UNWRITTEN"):
        nisa.nc_stream_shuffle(dst, src, [1] * 32)


def test_shuffle_broadcasts_one_partition_and_works_in_place(trn2):
    dst = fresh((32, 3))
    nisa.nc_stream_shuffle(dst, tile([[1.0, 2.0, 3.0]]), [0] * 32)
    assert all(plain(dst)[p].tolist() == [1, 2, 3] for p in range(32))
    t = tile([[float(p)] for p in range(32)])
    nisa.nc_stream_shuffle(t, t, ROTATE)
    assert plain(t)[:, 0].tolist() == [float(ROTATE[p]) for p in range(32)]


def test_shuffle_between_quadrants(trn2):
    base, other = tile([[float(p)] for p in range(128)]), tile([[-1.0]] * 128)
    nisa.nc_stream_shuffle(other[96:128], base[32:64], ROTATE)
    assert plain(other)[96:, 0].tolist() == [32.0 + ROTATE[p] for p in range(32)]
    assert set(plain(other)[:96, 0]) == {-1.0}


# --- local_gather -------------------------------------------------------------------------------
@pytest.mark.parametrize(("elements", "valid"), [(1, 32), (4, 32), (2, 21)])
@pytest.mark.parametrize("cores", [1, 2])
def test_local_gather_reads_indices_partition_first(trn2, elements, valid, cores):
    partitions, width = 16 * cores, 40
    rng = random.Random(elements)
    data = [[100 * p + f for f in range(width)] for p in range(partitions)]
    index = [[rng.randrange(width - elements + 1) for _ in range(2)] for _ in range(partitions)]
    dst = fresh((partitions, valid, elements), "int32")
    nisa.local_gather(dst, tile(data, "int32"), tile(index, "uint16"), elements, valid)
    for p, i, e in indices((partitions, valid, elements)):
        start = index[p // 16 * 16 + i % 16][i // 16]
        assert plain(dst)[p, i, e] == data[p][start + e]


def test_local_gather_takes_all_indices_by_default_and_writes_into_a_view(trn2):
    data = [[float(f + p) for f in range(8)] for p in range(16)]
    index = [[p % 8] for p in range(16)]
    whole = tile([[-1.0] * 20] * 16)
    nisa.local_gather(whole[:, 2:18], tile(data), tile(index, "uint16"))
    for p in range(16):
        assert plain(whole)[p, 2:18].tolist() == [float(i % 8 + p) for i in range(16)]
        assert plain(whole)[p, [0, 1, 18, 19]].tolist() == [-1.0] * 4


# --- nc_n_gather --------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_n_gather_reads_within_a_partition(trn2, dtype):
    data = [[[p + 4 * a + b for b in range(4)] for a in range(3)] for p in range(5)]
    index = [[[(p + i + j) % 12 for j in range(2)] for i in range(4)] for p in range(5)]
    dst = fresh((5, 4, 2), dtype)
    nisa.nc_n_gather(dst, tile(data, dtype), tile(index, "uint32"))
    for p, i, j in indices((5, 4, 2)):
        assert plain(dst)[p, i, j] == p + index[p][i][j]
