# SPDX-License-Identifier: Apache-2.0
"""Copies, constants and elementwise arithmetic against loops over plain numbers."""

import itertools
import math

import numpy as np
import pytest

from tests.adapters.nki import plain as oracle
from tests.adapters.nki.tiles import fresh, indices, plain, tile
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.rules import RuleViolationError

INF, NAN = math.inf, math.nan
#: Edge values that every float dtype stores as something definite.
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.75, 3.0, 1e-40, -1e-45, 3.4e38, -3.4e38, INF, -INF, NAN]
DTYPES = [*oracle.FLOATS, *oracle.INTEGERS]


def values_for(dtype, count=8):
    """Values of a dtype, as the tile holds them."""
    if dtype in oracle.FLOATS:
        return [oracle.round_float(oracle.f32(value), dtype) for value in EDGES[:count]]
    low, high = oracle.limits(dtype)
    return [0, 1, 2, high, high - 1, low, low + 1, 3, 100, 77, 5, 6, 7, 8][:count]


def as_f32(value):
    return oracle.f32(float(value))


# --- tensor_copy --------------------------------------------------------------------------------
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("destination", DTYPES)
def test_copy_is_exact_between_equal_dtypes_and_rounds_otherwise(trn2, source, destination):
    values = values_for(source, 14)
    src = tile([values, values[::-1]], source)
    dst = fresh((2, len(values)), destination)
    nisa.tensor_copy(dst, src)
    got = plain(dst)
    for p, f in indices((2, len(values))):
        value = values[f] if p == 0 else values[-1 - f]
        if isinstance(value, float) and math.isnan(value) and destination in oracle.INTEGERS:
            continue  # nobody documents it
        wanted = value if source == destination else oracle.store(as_f32(value), destination)
        assert oracle.same(got[p, f], wanted), (value, got[p, f], wanted)


def test_copy_of_int32_keeps_every_bit_and_goes_through_fp32_to_another_dtype(trn2):
    value = 2**24 + 1
    dst, unsigned = fresh((1, 1), "int32"), fresh((1, 1), "uint32")
    nisa.tensor_copy(dst, tile([[value]], "int32"))
    nisa.tensor_copy(unsigned, tile([[value]], "int32"))
    assert plain(dst)[0, 0] == value
    assert plain(unsigned)[0, 0] == 2**24


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (0.5, "int32", 0),
        (1.5, "int32", 2),
        (2.5, "int32", 2),
        (-0.5, "int8", 0),
        (-1.5, "int8", -2),
        (127.5, "int8", 127),
        (300.0, "uint8", 255),
        (-3.0, "uint8", 0),
        (3e9, "int32", 2**31 - 1),
        (-3e9, "int32", -(2**31)),
        (5e9, "uint32", 2**32 - 1),
        (INF, "int16", 32767),
        (-INF, "int16", -32768),
        (70000.0, "uint16", 65535),
    ],
)
def test_fp32_to_integer_rounds_to_even_and_saturates(trn2, value, dtype, wanted):
    dst = fresh((1, 1), dtype)
    nisa.tensor_copy(dst, tile([[value]]))
    assert plain(dst)[0, 0] == wanted


@pytest.mark.parametrize("view", [lambda t: t[:, 1:3, ::2], lambda t: t[0:2, 1, 0:4]])
def test_operands_may_be_strided_views_of_three_dimensions(trn2, view):
    shape = (3, 4, 5)
    base = [[[100 * p + 10 * a + b for b in range(5)] for a in range(4)] for p in range(3)]
    src, dst = tile(base), tile([[[-1.0] * 5] * 4] * 3)
    nisa.tensor_copy(view(dst), view(src))
    chosen = {int(value) for value in view(np.asarray(base)).reshape(-1)}
    for p, a, b in indices(shape):
        value = base[p][a][b]
        assert plain(dst)[p, a, b] == (value if value in chosen else -1)


def test_four_dimensions_permuted_and_flattened(trn2):
    shape = (2, 2, 3, 4)
    values = [
        [[[p * 24 + a * 12 + b * 4 + c for c in range(4)] for b in range(3)] for a in range(2)]
        for p in range(2)
    ]
    src, dst = tile(values), fresh((2, 4, 2, 3))
    nisa.tensor_copy(dst, src.permute((0, 3, 1, 2)))
    for p, a, b, c in indices(shape):
        assert plain(dst)[p, c, a, b] == values[p][a][b][c]
    flat = fresh((2, 24))
    nisa.tensor_copy(flat, src)
    for p, a, b, c in indices(shape):
        assert plain(flat)[p, a * 12 + b * 4 + c] == values[p][a][b][c]


def test_copy_within_one_tile_reads_before_it_writes(trn2):
    t = tile([[0.0, 1.0, 2.0, 3.0, 4.0]])
    nisa.tensor_copy(t[:, 1:5], t[:, 0:4])
    assert list(plain(t)[0]) == [0, 0, 1, 2, 3]


# --- memset and iota ----------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
def test_memset_stores_the_value_in_every_dtype(trn2, dtype):
    value = 2.718281828 if dtype in oracle.FLOATS else 77
    t = fresh((3, 2, 2), dtype)
    nisa.memset(t, value)
    for index in indices(t.shape):
        wanted = oracle.store(oracle.f32(value), dtype) if dtype in oracle.FLOATS else 77
        assert oracle.same(plain(t)[index], wanted)


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31), 2**24 + 1])
def test_memset_of_int32_is_exact(trn2, value):
    t = fresh((1, 2), "int32")
    nisa.memset(t, value)
    assert list(plain(t)[0]) == [value, value]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"])
def test_memset_zeroes_packed_dtypes(trn3, dtype):
    t = fresh((2, 2), dtype)
    nisa.memset(t, 0)
    assert not plain(t).any()


PATTERNS = [
    ([[1, 12]], 0, 0),
    ([[4, 3], [1, 4]], 7, 100),
    ([[-5, 2], [3, 3], [2, 2]], -1, -3),
    ([[100, 1], [6, 2], [-2, 3], [1, 2]], 5, 2),
]


@pytest.mark.parametrize(("pattern", "offset", "channel"), PATTERNS)
@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16", "uint8", "int16"])
def test_iota_follows_the_loop_of_the_documentation(trn2, pattern, offset, channel, dtype):
    shape = (3, *[count for _, count in pattern])
    t = fresh(shape, dtype)
    nisa.iota(t, pattern, offset, channel)
    for index in indices(shape):
        value = offset + index[0] * channel
        for (step, _), position in zip(pattern, index[1:], strict=True):
            value += step * position
        assert oracle.same(plain(t)[index], oracle.store_int(value, dtype))


def test_iota_needs_only_as_many_elements_as_the_tile(trn2):
    t = fresh((2, 6), "int32")
    nisa.iota(t, [[10, 2], [1, 3]])
    assert list(plain(t)[1]) == [0, 1, 2, 10, 11, 12]


def test_iota_is_exact_beyond_fp32(trn2):
    t = fresh((1, 2), "int32")
    nisa.iota(t, [[1, 2]], offset=2**24 + 1)
    assert list(plain(t)[0]) == [2**24 + 1, 2**24 + 2]


def test_iota_takes_its_offset_from_a_register(trn2):
    t = fresh((1, 3), "int32")
    nisa.iota(t, [[1, 3]], offset=nisa.register_alloc(40))
    assert list(plain(t)[0]) == [40, 41, 42]


# --- reciprocal ---------------------------------------------------------------------------------
def test_reciprocal_of_edges(trn2):
    values = [1.0, -2.0, 3.0, 0.0, -0.0, INF, -INF, NAN, 1e30]
    wanted = [1.0, -0.5, oracle.f32(1 / 3), INF, -INF, 0.0, -0.0, NAN, oracle.f32(1 / 1e30)]
    dst = fresh((1, 9))
    nisa.reciprocal(dst, tile([values]))
    for got, value in zip(plain(dst)[0], wanted, strict=True):
        assert oracle.same(got, value) or oracle.close(got, value, 1.2e-7)


def test_reciprocal_of_an_integer_tile_to_bfloat16(trn2):
    dst = fresh((1, 3), "bfloat16")
    nisa.reciprocal(dst, tile([[3, 7, 10]], "int32"))
    for got, value in zip(plain(dst)[0], [3, 7, 10], strict=True):
        assert got == oracle.store(oracle.f32(1 / value), "bfloat16")


# --- tensor_tensor ------------------------------------------------------------------------------
@pytest.mark.parametrize("op", sorted(oracle.ARITHMETIC))
@pytest.mark.parametrize("dtypes", [("float32",) * 3, ("bfloat16", "float16", "bfloat16")])
def test_arithmetic_of_all_pairs_of_edges(trn2, op, dtypes):
    first, second, out = dtypes
    pairs = list(itertools.product(values_for(first, 14), values_for(second, 14)))
    if op in {"maximum", "minimum"}:  # nobody documents which zero wins
        pairs = [(a, b) for a, b in pairs if not a == b == 0]
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    dst = fresh((1, len(pairs)), out)
    nisa.tensor_tensor(dst, tile([a], first), tile([b], second), getattr(nl, op))
    for got, x, y in zip(plain(dst)[0], a, b, strict=True):
        wanted = oracle.store(oracle.ARITHMETIC[op](x, y), out)
        assert oracle.same(got, wanted), (op, x, y, got, wanted)


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "maximum", "less", "logical_and"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_arithmetic_of_small_integers_saturates(trn2, op, dtype):
    values = values_for(dtype)
    pairs = list(itertools.product(values, values))
    dst = fresh((1, len(pairs)), dtype)
    first, second = tile([[a for a, _ in pairs]], dtype), tile([[b for _, b in pairs]], dtype)
    nisa.tensor_tensor(dst, first, second, getattr(nl, op))
    for got, (a, b) in zip(plain(dst)[0], pairs, strict=True):
        assert got == oracle.store(oracle.ARITHMETIC[op](float(a), float(b)), dtype)


EXACT = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
    "equal": lambda a, b: int(a == b),
    "less": lambda a, b: int(a < b),
    "logical_and": lambda a, b: int(a != 0 and b != 0),
    "logical_or": lambda a, b: int(a != 0 or b != 0),
}


@pytest.mark.parametrize("op", sorted(EXACT))
@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_32_bit_integers_are_exact_on_gpsimd(trn2, op, dtype):
    values = [*values_for(dtype), 2**24 + 1, 2**30 + 1, 2**31 - 3, 46341, 65537]
    low, high = oracle.limits(dtype)
    pairs = [(a, b) for a, b in itertools.product(values, values) if low <= EXACT[op](a, b) <= high]
    dst = fresh((1, len(pairs)), dtype)
    first, second = tile([[a for a, _ in pairs]], dtype), tile([[b for _, b in pairs]], dtype)
    nisa.tensor_tensor(dst, first, second, getattr(nl, op))
    assert [int(x) for x in plain(dst)[0]] == [EXACT[op](a, b) for a, b in pairs]
    assert trn2.counters.engines["gpsimd"].instructions == 1


def test_32_bit_integers_on_the_vector_engine_are_fp32(trn2):
    dst = fresh((1, 1), "int32")
    first, second = tile([[2**24 + 1]], "int32"), tile([[0]], "int32")
    nisa.tensor_tensor(dst, first, second, nl.add, engine=nisa.engine.vector)
    assert plain(dst)[0, 0] == 2**24
    in_psum = tile([[2**24 + 1]], "int32", nl.psum)
    nisa.tensor_tensor(dst, in_psum, second, nl.add)
    assert plain(dst)[0, 0] == 2**24


@pytest.mark.parametrize(("a", "b"), [(2**31 - 1, 1), (-(2**31), -1)])
def test_an_integer_overflow_is_reported_and_wraps_when_relaxed(trn2, a, b):
    dst, first, second = fresh((1, 1), "int32"), tile([[a]], "int32"), tile([[b]], "int32")
    with pytest.raises(RuleViolationError, match="NKI-INT-OVERFLOW"):
        nisa.tensor_tensor(dst, first, second, nl.add)
    trn2.strict = False
    nisa.tensor_tensor(dst, first, second, nl.add)
    assert plain(dst)[0, 0] == oracle.of_bits((a + b) % 2**32, "int32")


@pytest.mark.parametrize("a", [2**32 - 1, 2**16, 65537])
def test_an_overflow_of_a_uint32_product_is_reported(trn2, a):
    operands = [tile([[a]], "uint32"), tile([[a]], "uint32")]
    with pytest.raises(RuleViolationError, match="NKI-INT-OVERFLOW"):
        nisa.tensor_tensor(fresh((1, 1), "uint32"), *operands, nl.multiply)


@pytest.mark.parametrize("op", sorted(oracle.BITVEC))
@pytest.mark.parametrize("dtype", oracle.INTEGERS)
def test_bitvec_works_on_bit_patterns(trn2, op, dtype):
    values = values_for(dtype, 8)
    shifts = [0, 1, 2, 7, oracle.BITS[dtype] - 1, oracle.BITS[dtype]]
    others = shifts if "shift" in op else values
    pairs = list(itertools.product(values, others))
    dst = fresh((1, len(pairs)), dtype)
    first, second = tile([[a for a, _ in pairs]], dtype), tile([[b for _, b in pairs]], dtype)
    nisa.tensor_tensor(dst, first, second, getattr(nl, op))
    for got, (a, b) in zip(plain(dst)[0], pairs, strict=True):
        width = oracle.BITS[dtype]
        left, right = oracle.bits_of(a, dtype), oracle.bits_of(b, dtype)
        wanted = oracle.of_bits(oracle.BITVEC[op](left, right, width), dtype)
        assert got == wanted, (op, a, b)


@pytest.mark.parametrize("op", sorted(oracle.ABSOLUTE))
def test_magnitude_operators_return_the_signed_value_and_the_second_on_ties(trn3, op):
    pairs = [(-5.0, 3.0), (3.0, -5.0), (1.0, -1.0), (-1.0, 1.0), (0.0, -2.0), (-INF, 4.0)]
    dst = fresh((1, len(pairs)))
    first, second = tile([[a for a, _ in pairs]]), tile([[b for _, b in pairs]])
    nisa.tensor_tensor(dst, first, second, getattr(nl, op))
    for got, (a, b) in zip(plain(dst)[0], pairs, strict=True):
        assert oracle.same(got, oracle.ABSOLUTE[op](a, b))


def test_power_runs_on_gpsimd(trn2):
    dst = fresh((1, 4))
    nisa.tensor_tensor(dst, tile([[2.0, 9.0, 5.0, 2.0]]), tile([[10.0, 0.5, 0.0, -1.0]]), nl.power)
    assert list(plain(dst)[0]) == [1024.0, 3.0, 1.0, 0.5]
    assert list(trn2.counters.engines) == ["gpsimd"]


def test_tiles_of_different_rank_pair_their_elements_in_order(trn2):
    dst = fresh((2, 3, 2))
    first = tile([[0.0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    second = tile([[[1.0] * 3] * 2] * 2)
    nisa.tensor_tensor(dst, first, second, nl.add)
    for p, a, b in indices((2, 3, 2)):
        assert plain(dst)[p, a, b] == p * 6 + a * 2 + b + 1


def test_the_result_may_overwrite_an_input(trn2):
    t = tile([[1.0, 2.0, 3.0]])
    nisa.tensor_tensor(t, t, t, nl.multiply)
    assert list(plain(t)[0]) == [1, 4, 9]


# --- tensor_scalar ------------------------------------------------------------------------------
@pytest.mark.parametrize("op", sorted(set(oracle.ARITHMETIC)))
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("column", [False, True])
def test_one_operator_with_a_number_or_a_column(trn2, op, reverse, column):
    values = [1.0, -2.5, 0.0, 3.0, INF, NAN, 1e-40]
    others = [2.0, -0.5]
    operand = tile([[x] for x in others]) if column else others[0]
    dst = fresh((2, len(values)))
    nisa.tensor_scalar(dst, tile([values] * 2), getattr(nl, op), operand, reverse0=reverse)
    for p, f in indices((2, len(values))):
        x, y = oracle.f32(values[f]), others[p] if column else others[0]
        wanted = oracle.ARITHMETIC[op](y, x) if reverse else oracle.ARITHMETIC[op](x, y)
        assert oracle.same(plain(dst)[p, f], wanted)


@pytest.mark.parametrize(
    ("op0", "op1"), [("multiply", "add"), ("subtract", "maximum"), ("add", "subtract")]
)
@pytest.mark.parametrize("reverses", list(itertools.product([False, True], repeat=2)))
def test_two_operators_round_to_fp32_in_between(trn2, op0, op1, reverses):
    values = [0.1, -7.3, 1e8, 123.456]
    a, b = oracle.f32(0.3), oracle.f32(-1e-3)
    dst = fresh((1, 4))
    nisa.tensor_scalar(
        dst,
        tile([values]),
        getattr(nl, op0),
        a,
        reverses[0],
        getattr(nl, op1),
        b,
        reverses[1],
    )
    for got, value in zip(plain(dst)[0], values, strict=True):
        x = oracle.f32(value)
        first = oracle.ARITHMETIC[op0](a, x) if reverses[0] else oracle.ARITHMETIC[op0](x, a)
        wanted = (
            oracle.ARITHMETIC[op1](b, first) if reverses[1] else oracle.ARITHMETIC[op1](first, b)
        )
        assert oracle.same(got, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out", ["float32", "bfloat16", "int32", "uint8", "float8_e4m3"])
def test_tensor_scalar_takes_and_gives_every_dtype(trn2, dtype, out):
    values = [v for v in values_for(dtype, 10) if not (isinstance(v, float) and math.isnan(v))]
    dst = fresh((1, len(values)), out)
    nisa.tensor_scalar(dst, tile([values], dtype), nl.multiply, 0.75, op1=nl.add, operand1=2.0)
    for got, value in zip(plain(dst)[0], values, strict=True):
        wanted = oracle.f32(oracle.f32(as_f32(value) * 0.75) + 2.0)
        assert oracle.same(got, oracle.store(wanted, out))


def test_tensor_scalar_of_int32_is_fp32_math(trn2):
    dst = fresh((1, 1), "int32")
    nisa.tensor_scalar(dst, tile([[2**24 + 1]], "int32"), nl.add, 0)
    assert plain(dst)[0, 0] == 2**24


@pytest.mark.parametrize("op", sorted(oracle.BITVEC))
@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint8", "int16"])
@pytest.mark.parametrize("reverse", [False, True])
def test_bitvec_with_constants(trn2, op, dtype, reverse):
    values, width = values_for(dtype, 8), oracle.BITS[dtype]
    if "shift" in op and reverse:
        values = [0, 1, 2, width - 1]
    constant = 3
    dst = fresh((1, len(values)), dtype)
    nisa.tensor_scalar(dst, tile([values], dtype), getattr(nl, op), constant, reverse0=reverse)
    for got, value in zip(plain(dst)[0], values, strict=True):
        a, b = oracle.bits_of(value, dtype), constant
        bits = oracle.BITVEC[op](b, a, width) if reverse else oracle.BITVEC[op](a, b, width)
        assert got == oracle.of_bits(bits, dtype)


def test_bitvec_with_two_operators_a_column_and_invert(trn2):
    dst = fresh((2, 2), "uint16")
    data, masks = tile([[0x1234, 0xFFFF]] * 2, "uint16"), tile([[0x00FF], [0xF0F0]], "uint16")
    nisa.tensor_scalar(dst, data, nl.bitwise_and, masks, op1=nl.left_shift, operand1=4)
    assert plain(dst).tolist() == [[0x340, 0xFF0], [0x0300, 0x0F00]]
    nisa.tensor_scalar(dst, data, nl.invert, None)
    assert plain(dst)[0].tolist() == [0xEDCB, 0]


@pytest.mark.parametrize(
    ("op", "values", "wanted"),
    [
        ("abs", [-2.0, 3.0, -0.0, -INF], [2.0, 3.0, 0.0, INF]),
        ("rsqrt", [4.0, 0.25, 1.0, 0.0], [0.5, 2.0, 1.0, INF]),
        ("reciprocal", [4.0, -0.5, INF, 0.0], [0.25, -2.0, 0.0, INF]),
        ("square", [-3.0, 0.5, INF, 1e30], [9.0, 0.25, INF, INF]),
        ("relu", [-3.0, 0.5, INF, -INF], [0.0, 0.5, INF, 0.0]),
    ],
)
@pytest.mark.parametrize("operand", [None, 0, 0.0])
def test_unary_operators_take_no_operand(trn3, op, values, wanted, operand):
    dst = fresh((1, 4))
    nisa.tensor_scalar(dst, tile([values]), getattr(nl, op), operand)
    for got, value in zip(plain(dst)[0], wanted, strict=True):
        assert oracle.close(got, value)


def test_logical_and_treats_every_nonzero_as_true(trn2):
    dst = fresh((1, 5))
    nisa.tensor_scalar(dst, tile([[0.0, -0.0, 0.5, -3.0, NAN]]), nl.logical_and, 2.0)
    assert list(plain(dst)[0]) == [0, 0, 1, 1, 1]


def test_the_scalar_engine_takes_its_three_forms(trn2):
    data, dst = tile([[1.0, 2.0]]), fresh((1, 2))
    scalar = nisa.engine.scalar
    nisa.tensor_scalar(dst, data, nl.multiply, 3.0, op1=nl.add, operand1=1.0, engine=scalar)
    nisa.tensor_scalar(dst, data, nl.multiply, 3.0, engine=scalar)
    nisa.tensor_scalar(dst, data, nl.add, 3.0, engine=scalar)
    assert list(plain(dst)[0]) == [4, 5]
    assert trn2.counters.engines["scalar"].instructions == 3


# --- scalar_tensor_tensor -----------------------------------------------------------------------
@pytest.mark.parametrize(("op0", "op1"), [("multiply", "add"), ("subtract", "multiply")])
@pytest.mark.parametrize("reverses", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("column", [False, True])
def test_scalar_tensor_tensor_is_two_rounded_steps(trn2, op0, op1, reverses, column):
    data = [[0.1, -7.3, 1e8], [5.5, 0.0, -2.25]]
    other = [[3.3, 1.1, -0.7], [9.0, -1e-3, 4.0]]
    scalars = [oracle.f32(0.3), -2.0]
    dst = fresh((2, 3), "bfloat16")
    operand = tile([[s] for s in scalars]) if column else scalars[0]
    nisa.scalar_tensor_tensor(
        dst, tile(data), getattr(nl, op0), operand, getattr(nl, op1), tile(other), *reverses
    )
    for p, f in indices((2, 3)):
        x, y = oracle.f32(data[p][f]), oracle.f32(other[p][f])
        s = scalars[p] if column else scalars[0]
        first = oracle.ARITHMETIC[op0](s, x) if reverses[0] else oracle.ARITHMETIC[op0](x, s)
        last = oracle.ARITHMETIC[op1](y, first) if reverses[1] else oracle.ARITHMETIC[op1](first, y)
        assert oracle.same(plain(dst)[p, f], oracle.store(last, "bfloat16"))


# --- cost and precise mode ----------------------------------------------------------------------
def test_counts_know_engines_and_performance_modes(trn2):
    half = tile([[1.0] * 8], "bfloat16")
    single = tile([[1.0] * 8])
    in_psum = tile([[1.0] * 8], "bfloat16", nl.psum)
    for dst, src, cycles in [
        (half, half, 2),
        (half[:, ::2], half[:, ::2], 2),
        (half, in_psum, 4),
        (half, single, 8),
    ]:
        before = trn2.counters.engines["vector"].cycles if trn2.counters.engines else 0
        nisa.tensor_copy(dst, src)
        assert trn2.counters.engines["vector"].cycles - before == cycles
    before = trn2.counters.engines["vector"].cycles
    nisa.tensor_tensor(single, single, single, nl.add)
    assert trn2.counters.engines["vector"].cycles - before == 16
    nisa.tensor_tensor(half, half, half, nl.add)
    assert trn2.counters.engines["vector"].cycles - before == 24
    assert trn2.counters.instructions == {"tensor_copy": 4, "tensor_tensor": 2}


@pytest.mark.parametrize(
    ("buffers", "engine", "cycles"),
    [
        ((nl.sbuf, nl.sbuf), "gpsimd", 12),
        ((nl.psum, nl.sbuf), "vector", 3),
        ((nl.sbuf, nl.psum), "vector", 3),
    ],
)
def test_rsqrt_runs_on_gpsimd_where_that_reaches(trn2, buffers, engine, cycles):
    dst, data = fresh((1, 3), buffer=buffers[0]), tile([[1.0, 4.0, 16.0]], buffer=buffers[1])
    nisa.tensor_scalar(dst, data, nl.rsqrt, None)
    assert list(plain(dst)[0]) == [1.0, 0.5, 0.25]
    assert trn2.counters.engines[engine].cycles == cycles


def test_precise_mode_does_not_round():
    with machine.session("trn2", precise=True):
        dst, data = fresh((1, 1), "bfloat16"), fresh((1, 1), "bfloat16")
        nisa.memset(data, 1.0)
        nisa.tensor_scalar(dst, data, nl.multiply, 1.001)
        assert plain(dst)[0, 0] == oracle.f32(1.001)
