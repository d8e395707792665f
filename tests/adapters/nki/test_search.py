# SPDX-License-Identifier: Apache-2.0
"""Searches: largest values, their positions, nonzeros and segments, against plain loops."""

import math
import random

import pytest

from tests.adapters.nki import plain as oracle
from tests.adapters.nki.tiles import fresh, plain, tile
from trnport.adapters.nki.simulator import isa as nisa

INF = math.inf
MISSING = {"uint16": 0xFFFF, "uint32": 0xFFFFFFFF}


def rows_of(count, seed, rows=3):
    rng = random.Random(seed)
    return [[oracle.f32(float(rng.randint(-20, 20))) for _ in range(count)] for _ in range(rows)]


# --- max8 ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [8, 9, 33])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_max8_sorts_the_eight_largest(trn2, count, dtype):
    rows = rows_of(count, count)
    dst = fresh((3, 8), "bfloat16")
    nisa.max8(dst, tile(rows, dtype))
    for p, row in enumerate(rows):
        assert plain(dst)[p].tolist() == sorted(row, reverse=True)[:8]


def test_max8_reads_all_free_dimensions_and_infinities(trn2):
    values = [[[1.0, INF, 3.0], [-INF, 5.0, 6.0], [7.0, 2.0, 9.0]]]
    dst = fresh((1, 8))
    nisa.max8(dst, tile(values))
    assert plain(dst)[0].tolist() == [INF, 9, 7, 6, 5, 3, 2, 1]


# --- nc_find_index8 -----------------------------------------------------------------------------
def find(data, vals, missing):
    used, out = set(), []
    for value in vals:
        where = [i for i, x in enumerate(data) if x == value and i not in used]
        out.append(where[0] if where else missing)
        used |= set(where[:1])
    return out


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_find_index8_walks_duplicates_forward_and_marks_misses(trn2, dtype):
    data = [8.0, 1.0, 8.0, 3.0, 8.0, 0.0, 5.0, 8.0, 8.0]
    vals = [8.0, 8.0, 3.0, 42.0, 8.0, 8.0, 8.0, 8.0]
    dst = fresh((1, 8), dtype)
    nisa.nc_find_index8(dst, tile([data]), tile([vals]))
    miss = MISSING[dtype]
    assert plain(dst)[0].tolist() == [0, 2, 3, miss, 4, 7, 8, miss]


@pytest.mark.parametrize("count", [8, 50])
def test_find_index8_finds_what_max8_found(trn2, count):
    rows = rows_of(count, 100 + count)
    top, dst = fresh((3, 8)), fresh((3, 8), "uint32")
    data = tile(rows)
    nisa.max8(top, data)
    nisa.nc_find_index8(dst, data, top)
    for p, row in enumerate(rows):
        wanted = find(row, sorted(row, reverse=True)[:8], MISSING["uint32"])
        assert plain(dst)[p].tolist() == wanted


def test_find_index8_in_three_dimensions_and_low_precision(trn2):
    data = [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 257.0]]]
    vals = [[2.0, 4.0, 6.0, 8.0, 1.0, 3.0, 5.0, 256.0]]
    dst = fresh((1, 8), "uint32")
    nisa.nc_find_index8(dst, tile(data, "bfloat16"), tile(vals))
    assert plain(dst)[0].tolist() == [1, 3, 5, 7, 0, 2, 4, 8]


# --- nc_match_replace8 --------------------------------------------------------------------------
def replace(data, vals, imm, missing):
    out, index, used = list(data), [missing] * 8, set()
    for slot in range(7, -1, -1):
        for i, x in enumerate(data):
            if x == vals[slot] and i not in used:
                used.add(i)
                out[i], index[slot] = imm, i
                break
    return out, index


def test_match_replace8_gives_the_documented_example(trn2):
    data = [1.0, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]
    vals = [3.0, 8, 8, 8, 8, 8, 8, 8]
    dst, index = fresh((1, 11)), fresh((1, 8), "uint32")
    nisa.nc_match_replace8(dst, tile([data]), tile([vals]), -1.0, index)
    assert plain(index)[0].tolist() == [2, 10, 9, 8, 7, 6, 5, 4]
    assert plain(dst)[0].tolist() == [1, 2, -1, 4, -1, -1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("imm", [-INF, 0.0])
def test_match_replace8_with_misses_and_few_duplicates(trn2, dtype, imm):
    rows = rows_of(20, 9)
    vals = [[row[0], row[0], row[3], 99.0, row[5], row[19], -99.0, row[3]] for row in rows]
    dst, index = fresh((3, 20)), fresh((3, 8), dtype)
    nisa.nc_match_replace8(dst, tile(rows), tile(vals), imm, index)
    for p, row in enumerate(rows):
        wanted, positions = replace(row, vals[p], imm, MISSING[dtype])
        assert plain(dst)[p].tolist() == wanted
        assert plain(index)[p].tolist() == positions


def test_match_replace8_in_place_over_three_dimensions(trn2):
    data = tile([[[4.0, 3.0, 2.0, 1.0], [8.0, 7.0, 6.0, 5.0]]])
    vals = tile([[8.0, 7, 6, 5, 4, 3, 2, 2]])
    nisa.nc_match_replace8(data, data, vals, 0.0)
    assert plain(data)[0].tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]


def test_top16_from_two_rounds(trn2):
    rows = [[float((7 * i) % 40) for i in range(40)]]
    data, top = tile(rows), fresh((1, 16))
    nisa.max8(top[:, 0:8], data)
    nisa.nc_match_replace8(data, data, top[:, 0:8], -INF)
    nisa.max8(top[:, 8:16], data)
    assert plain(top)[0].tolist() == sorted(rows[0], reverse=True)[:16]


# --- topk ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("n", "k"), [(42, 8), (8, 1), (33, 33)])
def test_topk_reads_a_snake_of_sixteen_partitions(trn2, n, k):
    width = (n + 15) // 16
    rng = random.Random(n)
    sources = [rng.sample(range(-200, 200), 16 * width) for _ in range(2)]
    tile_rows = [[0.0] * width for _ in range(32)]
    for group, source in enumerate(sources):
        for e, value in enumerate(source):
            tile_rows[group * 16 + e % 16][e // 16] = float(value)
    values, index = fresh((32, k), "bfloat16"), fresh((32, k), "uint32")
    nisa.topk(values, index, tile(tile_rows, "bfloat16"), n)
    for p in range(32):
        active = sources[p // 16][:n]
        wanted = sorted(active)[-k:]
        assert plain(values)[p].tolist() == wanted
        assert [active[i] for i in plain(index)[p]] == wanted


# --- nonzero_with_count -------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_nonzero_with_count_works_on_every_sixteenth_partition(trn2, dtype):
    rows = [[(p * f + f) % 3 for f in range(8)] for p in range(40)]
    rows[0] = [0, 1, 1, 0, 0, 1, 0, 0]
    rows[16] = [0] * 8
    dst = tile([[-7] * 9 for _ in range(40)], "int32")
    nisa.nonzero_with_count(dst, tile(rows, dtype), index_offset=16, padding_val=-1)
    assert plain(dst)[0].tolist() == [17, 18, 21, -1, -1, -1, -1, -1, 3]
    for p in range(40):
        found = [16 + f for f, value in enumerate(rows[p]) if value != 0]
        wanted = [*found, *[-1] * (8 - len(found)), len(found)] if p % 16 == 0 else [-7] * 9
        assert plain(dst)[p].tolist() == wanted


def test_nonzero_with_count_leaves_other_partitions_unwritten(trn2):
    dst = fresh((32, 3), "int32")
    nisa.nonzero_with_count(dst, tile([[1, 0]] * 32, "int32"))
    nisa.tensor_copy(fresh((1, 3), "int32"), dst[0:1])
    assert plain(dst)[1].tolist() == [4, 4, 4]  # what fresh integers hold


# --- sequence_bounds ----------------------------------------------------------------------------
def bounds(ids):
    n = len(ids)
    low, high = [], []
    for i, value in enumerate(ids):
        start = end = i
        while start > 0 and ids[start - 1] == value:
            start -= 1
        while end < n - 1 and ids[end + 1] == value:
            end += 1
        low.append(start if value else n)
        high.append(end + 1 if value else -1)
    return [low, high]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    "ids", [[0, 1, 1, 2, 2, 2, 0, 3, 3], [1], [0], [5, 5, 5], [1, 2, 1, 0, 0, 1]]
)
def test_sequence_bounds(trn2, dtype, ids):
    dst = fresh((1, 2, len(ids)), dtype)
    nisa.sequence_bounds(dst, tile([ids], dtype))
    assert plain(dst)[0].tolist() == bounds(ids)
