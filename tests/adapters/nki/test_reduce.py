# SPDX-License-Identifier: Apache-2.0
"""Reductions, scans and statistics, against loops over plain numbers."""

import functools
import math
import random

import pytest

from tests.adapters.nki import plain as oracle
from tests.adapters.nki.tiles import fresh, indices, plain, tile
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator.rules import RuleViolationError

INF, NAN = math.inf, math.nan
CMD = nisa.reduce_cmd
#: Small integers: sums and products are exact in fp32, whatever the order.
CUBE = [
    [[[(7 * p + 5 * a + 3 * b + c) % 5 - 2 for c in range(4)] for b in range(3)] for a in range(2)]
    for p in range(3)
]


def fold(name, values):
    if name in {"logical_and", "logical_or", "logical_xor"}:
        truths = [float(value != 0) for value in values]
        return functools.reduce(oracle.ARITHMETIC[name], truths)
    return functools.reduce(oracle.ARITHMETIC[name], [float(value) for value in values])


# --- tensor_reduce ------------------------------------------------------------------------------
REDUCTIONS = [
    "add", "subtract", "multiply", "maximum", "minimum", "logical_and", "logical_or", "logical_xor",
]  # fmt: skip


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axis", [3, (3,), (2, 3), [1, 2, 3]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_over_trailing_axes(trn2, op, axis, keepdims):
    axes = [axis] if isinstance(axis, int) else list(axis)
    kept = [size for index, size in enumerate((3, 2, 3, 4)) if index not in axes]
    shape = [1 if index in axes else size for index, size in enumerate((3, 2, 3, 4))]
    dst = fresh(tuple(shape) if keepdims else tuple(kept) if len(kept) > 1 else (3, 1))
    nisa.tensor_reduce(dst, getattr(nl, op), tile(CUBE), axis, keepdims=keepdims)
    got = plain(dst).reshape(kept)
    for index in indices(tuple(kept)):
        part = CUBE
        for position in index:
            part = part[position]
        flat = [part]
        for _ in axes:
            flat = [value for row in flat for value in row]
        assert got[index] == fold(op, flat), (op, index)


@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor"])
@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint8", "int16"])
def test_bitvec_reductions_keep_patterns(trn2, op, dtype):
    low, high = oracle.limits(dtype)
    rows = [[low, high, 5, 3], [high - 1, 7, high, 6]]
    dst = fresh((2, 1), dtype)
    nisa.tensor_reduce(dst, getattr(nl, op), tile(rows, dtype), 1)
    for p, row in enumerate(rows):
        bits = [oracle.bits_of(value, dtype) for value in row]
        wanted = functools.reduce(lambda a, b: oracle.BITVEC[op](a, b, 32), bits)
        assert plain(dst)[p, 0] == oracle.of_bits(wanted, dtype)


def test_negate_and_casts(trn2):
    dst = fresh((1, 1), "bfloat16")
    nisa.tensor_reduce(dst, nl.maximum, tile([[3, 257, -4]], "int32"), 1, negate=True)
    assert plain(dst)[0, 0] == oracle.store(-257.0, "bfloat16")


def test_sums_of_bfloat16_accumulate_in_fp32(trn2):
    dst = fresh((1, 1))
    nisa.tensor_reduce(dst, nl.add, tile([[256.0] + [1.0] * 7], "bfloat16"), 1)
    assert plain(dst)[0, 0] == 263.0


def test_nan_poisons_reductions(trn2):
    for op in ("add", "maximum", "minimum"):
        dst = fresh((1, 1))
        nisa.tensor_reduce(dst, getattr(nl, op), tile([[1.0, NAN, 2.0]]), 1)
        assert math.isnan(plain(dst)[0, 0])


def test_reduction_of_a_permuted_view(trn2):
    data = tile(CUBE)
    dst = fresh((3, 4, 2))
    nisa.tensor_reduce(dst, nl.add, data.permute((0, 3, 1, 2)), 3)
    for p, c, a in indices((3, 4, 2)):
        assert plain(dst)[p, c, a] == sum(CUBE[p][a][b][c] for b in range(3))


# --- tensor_scalar_reduce -----------------------------------------------------------------------
@pytest.mark.parametrize("op0", ["add", "multiply", "subtract", "maximum", "less"])
@pytest.mark.parametrize("reduce_op", ["add", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("negate", [False, True])
def test_tensor_scalar_reduce_reduces_its_result(trn2, op0, reduce_op, negate):
    data, operand = [[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], [2.0, -1.0]
    dst, res = fresh((2, 3)), fresh((2, 1))
    nisa.tensor_scalar_reduce(
        dst,
        tile(data),
        getattr(nl, op0),
        tile([[x] for x in operand]),
        getattr(nl, reduce_op),
        res,
        reduce_res_negate=negate,
    )
    for p in range(2):
        row = [oracle.ARITHMETIC[op0](x, operand[p]) for x in data[p]]
        assert plain(dst)[p].tolist() == row
        assert plain(res)[p, 0] == fold(reduce_op, row) * (-1 if negate else 1)


def test_tensor_scalar_reduce_continues_and_loads(trn2):
    dst, res, data = fresh((1, 2)), fresh((1, 1)), tile([[1.0, 2.0]])
    nisa.tensor_scalar_reduce(dst, data, nl.add, 0.0, nl.add)
    nisa.tensor_scalar_reduce(dst, data, nl.add, 0.0, nl.add, res, reduce_cmd=CMD.reduce)
    assert plain(res)[0, 0] == 6.0
    nisa.tensor_scalar_reduce(
        dst, data, nl.add, 0.0, nl.add, res, reduce_cmd=CMD.load_reduce, reduce_init=100.0
    )
    assert plain(res)[0, 0] == 103.0
    nisa.tensor_scalar_reduce(
        dst, data, nl.add, 0.0, nl.add, res, reduce_cmd=CMD.reduce, reduce_res_negate=True
    )
    assert plain(res)[0, 0] == -106.0
    nisa.tensor_scalar_reduce(dst, data, nl.add, 0.0, nl.add, res, reduce_cmd=CMD.reduce)
    assert plain(res)[0, 0] == 109.0  # the negation did not touch the accumulators


def test_accumulators_are_shared_by_vector_instructions(trn2):
    dst, res = fresh((1, 2)), fresh((1, 1))
    nisa.tensor_scalar_reduce(dst, tile([[1.0, 9.0]]), nl.add, 0.0, nl.maximum)
    low, high = tile([[0.0]]), tile([[9.0]])
    args = (nl.greater_equal, nl.less, low, high)
    nisa.range_select(dst, tile([[4.0, 5.0]]), *args, reduce_cmd=CMD.reduce, reduce_res=res)
    assert plain(res)[0, 0] == 9.0


def test_reduce_res_may_alias_dst(trn2):
    dst = fresh((1, 3))
    nisa.tensor_scalar_reduce(dst, tile([[1.0, 2.0, 4.0]]), nl.add, 0.0, nl.add, dst[:, 2:3])
    assert plain(dst)[0].tolist() == [1.0, 2.0, 7.0]


# --- tensor_scalar_cumulative -------------------------------------------------------------------
@pytest.mark.parametrize("op0", ["add", "multiply", "maximum"])
@pytest.mark.parametrize("op1", ["add", "subtract", "multiply", "maximum", "minimum"])
def test_cumulative_keeps_a_running_result(trn2, op0, op1):
    data, imm = [[1.0, -2.0, 3.0, 0.5], [2.0, 2.0, -1.0, 4.0]], [0.5, -1.0]
    start = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -INF, "minimum": INF}[op1]
    dst = fresh((2, 4), "bfloat16")
    column = tile([[x] for x in imm])
    nisa.tensor_scalar_cumulative(dst, tile(data), getattr(nl, op0), getattr(nl, op1), column)
    for p in range(2):
        reg = start
        for f in range(4):
            reg = oracle.ARITHMETIC[op1](oracle.ARITHMETIC[op0](data[p][f], imm[p]), reg)
            assert plain(dst)[p, f] == oracle.store(reg, "bfloat16")


def test_cumulative_continues_and_loads(trn2):
    dst, data = fresh((1, 3)), tile([[1.0, 2.0, 3.0]])
    nisa.tensor_scalar_cumulative(dst, data, nl.add, nl.add, 0.0)
    nisa.tensor_scalar_cumulative(dst, data, nl.add, nl.add, 0.0, reduce_cmd=CMD.reduce)
    assert plain(dst)[0].tolist() == [7, 9, 12]
    nisa.tensor_scalar_cumulative(
        dst, data, nl.add, nl.add, 0.0, imm1=tile([[100.0]]), reduce_cmd=CMD.load_reduce
    )
    assert plain(dst)[0].tolist() == [101, 103, 106]


# --- tensor_tensor_scan -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("op0", "op1"), [("multiply", "add"), ("subtract", "maximum"), ("multiply", "subtract")]
)
@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
@pytest.mark.parametrize("column", [False, True])
def test_scan_follows_the_recurrence(trn2, op0, op1, reverse0, reverse1, column):
    rng = random.Random(3)
    first = [[oracle.f32(rng.uniform(-1, 1)) for _ in range(6)] for _ in range(2)]
    second = [[oracle.f32(rng.uniform(-1, 1)) for _ in range(6)] for _ in range(2)]
    start = [0.25, -2.0]
    dst = fresh((2, 6))
    nisa.tensor_tensor_scan(
        dst,
        tile(first),
        tile(second),
        tile([[x] for x in start]) if column else start[0],
        getattr(nl, op0),
        getattr(nl, op1),
        reverse0,
        reverse1,
    )
    for p in range(2):
        state = start[p] if column else start[0]
        for f in range(6):
            a, b = (state, first[p][f]) if reverse0 else (first[p][f], state)
            middle = oracle.ARITHMETIC[op0](a, b)
            a, b = (second[p][f], middle) if reverse1 else (middle, second[p][f])
            state = oracle.ARITHMETIC[op1](a, b)
            assert oracle.same(plain(dst)[p, f], state)


def test_scan_carries_fp32_not_the_rounded_result(trn2):
    dst = fresh((1, 3), "bfloat16")
    ones, tiny = tile([[1.0] * 3]), tile([[256.0, 0.75, 0.75]])
    nisa.tensor_tensor_scan(dst, ones, tiny, 0.0, nl.multiply, nl.add)
    assert plain(dst)[0].tolist() == [256.0, 256.0, 258.0]  # 257.5, not 256 + 0.75 again


# --- tensor_partition_reduce --------------------------------------------------------------------
@pytest.mark.parametrize(("op", "wanted"), [("add", 14), ("average", 3.5), ("max", 8)])
def test_partition_reduce(trn2, op, wanted):
    dst = fresh((1, 2))
    nisa.tensor_partition_reduce(dst, getattr(nl, op), tile([[1, 1.0], [2, 0], [3, 0], [8, 0]]))
    assert plain(dst)[0, 0] == wanted


@pytest.mark.parametrize(("op", "wanted"), [("bitwise_or", 0b1111), ("bitwise_and", 0b0100)])
def test_partition_reduce_of_patterns(trn2, op, wanted):
    dst = fresh((1, 1), "int32")
    nisa.tensor_partition_reduce(dst, getattr(nl, op), tile([[0b0101], [0b1110]], "int32"))
    assert plain(dst)[0, 0] == wanted


# --- bn_stats and bn_aggr -----------------------------------------------------------------------
def statistics(values):
    mean = math.fsum(values) / len(values)
    return [len(values), mean, math.fsum((x - mean) ** 2 for x in values)]


@pytest.mark.parametrize("count", [2, 3, 7, 512])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bn_stats_of_even_and_odd_elements(trn2, count, dtype):
    rng = random.Random(count)
    rows = [[oracle.round_float(rng.gauss(3, 2), dtype) for _ in range(count)] for _ in range(2)]
    dst = fresh((2, 6))
    nisa.bn_stats(dst, tile(rows, dtype))
    for p in range(2):
        wanted = statistics(rows[p][0::2]) + statistics(rows[p][1::2])
        for got, value in zip(plain(dst)[p], wanted, strict=True):
            assert oracle.close(got, value, 1e-5, 1e-5)


def test_bn_aggr_joins_the_statistics_of_several_tiles(trn2):
    rng = random.Random(5)
    rows = [[oracle.f32(rng.gauss(-1, 4)) for _ in range(700)] for _ in range(3)]
    stats, dst = fresh((3, 12)), fresh((3, 2))
    data = tile(rows)
    nisa.bn_stats(stats[:, 0:6], data[:, 0:400])
    nisa.bn_stats(stats[:, 6:12], data[:, 400:700])
    nisa.bn_aggr(dst, stats)
    for p in range(3):
        _, mean, spread = statistics(rows[p])
        assert oracle.close(plain(dst)[p, 0], mean, 1e-5, 1e-5)
        assert oracle.close(plain(dst)[p, 1], spread / 700, 1e-5)


def test_undefined_accumulators_are_refused(trn2):
    with pytest.raises(RuleViolationError, match="NKI-ACCUMULATOR"):
        nisa.tensor_scalar_cumulative(
            fresh((1, 1)), tile([[1.0]]), nl.add, nl.add, 0.0, reduce_cmd=CMD.reduce
        )
