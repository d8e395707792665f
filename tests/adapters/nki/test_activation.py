# SPDX-License-Identifier: Apache-2.0
"""Activation functions and the accumulators behind them, against loops over plain numbers."""

import itertools
import math

import pytest

from tests.adapters.nki import plain as oracle
from tests.adapters.nki.tiles import fresh, indices, plain, tile
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator.rules import RuleViolationError

INF, NAN = math.inf, math.nan
CMD = nisa.reduce_cmd
GRID = [-9.5, -4.0, -2.0, -1.0, -0.3, -1e-3, 0.0, 1e-3, 0.25, 1.0, 1.5, 3.0, 7.75, 20.0]
POSITIVE = {"log", "sqrt", "rsqrt", "reciprocal"}


def grid_for(name):
    if name in POSITIVE:
        return [1e-6, 0.5, 1.0, 2.0, 3.5, 1e4]
    if name == "sin":
        return [-3.14, -2.0, -0.5, 0.0, 0.5, 2.0, 3.14]
    if name == "arctan":
        return [-1.57, -0.5, 0.0, 0.25, 1.57]
    return GRID


# --- the functions ------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(oracle.ACTIVATIONS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_functions_of_ordinary_values(trn2, name, dtype):
    values = [oracle.round_float(oracle.f32(x), dtype) for x in grid_for(name)]
    dst = fresh((1, len(values)))
    nisa.activation(dst, getattr(nl, name), tile([values], dtype))
    for got, x in zip(plain(dst)[0], values, strict=True):
        assert oracle.close(got, oracle.ACTIVATIONS[name](x), 3e-6, 3e-7), (name, x)


@pytest.mark.parametrize("name", sorted(oracle.ACTIVATIONS))
def test_nan_stays_nan(trn2, name):
    if name == "sign":
        return  # nobody documents it
    dst = fresh((1, 1))
    nisa.activation(dst, getattr(nl, name), tile([[NAN]]))
    assert math.isnan(plain(dst)[0, 0])


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("exp", 0.0, INF),
        ("sigmoid", 0.0, 1.0),
        ("tanh", -1.0, 1.0),
        ("relu", 0.0, INF),
        ("silu", 0.0, INF),
        ("gelu", 0.0, INF),
        ("gelu_apprx_tanh", 0.0, INF),
        ("gelu_apprx_sigmoid", 0.0, INF),
        ("mish", 0.0, INF),
        ("softplus", 0.0, INF),
        ("erf", -1.0, 1.0),
        ("silu_dx", 0.0, 1.0),
        ("gelu_dx", 0.0, 1.0),
        ("gelu_apprx_sigmoid_dx", 0.0, 1.0),
        ("erf_dx", 0.0, 0.0),
        ("square", INF, INF),
        ("abs", INF, INF),
        ("copy", -INF, INF),
        ("sign", -1.0, 1.0),
    ],
)
def test_infinities_give_the_limits_and_no_nan(trn2, name, low, high):
    dst = fresh((1, 2))
    nisa.activation(dst, getattr(nl, name), tile([[-INF, INF]]))
    assert plain(dst)[0].tolist() == [low, high]


def test_sin_does_not_reduce_its_range(trn2):
    trn2.strict = False
    dst = fresh((1, 2))
    nisa.activation(dst, nl.sin, tile([[9.0, -9.0]]))
    assert oracle.close(plain(dst)[0, 0], 27.65, absolute=0.01)
    assert plain(dst)[0, 1] == -plain(dst)[0, 0]


@pytest.mark.parametrize(
    ("name", "value"), [("log", -1.0), ("rsqrt", 0.0), ("sqrt", -4.0), ("reciprocal", 0.0)]
)
def test_invalid_inputs_give_nan_when_not_strict(trn2, name, value):
    trn2.strict = False
    dst = fresh((1, 2))
    nisa.activation(dst, getattr(nl, name), tile([[value, 1.0]]))
    assert math.isnan(plain(dst)[0, 0])
    assert not math.isnan(plain(dst)[0, 1])


# --- scale and bias -----------------------------------------------------------------------------
@pytest.mark.parametrize("scale_column", [False, True])
@pytest.mark.parametrize("bias", ["none", "number", "float32", "bfloat16", "int32"])
def test_scale_and_bias_come_before_the_function(trn2, scale_column, bias):
    data = [[0.5, -1.25, 3.0], [2.0, 0.0, -0.75]]
    scales, biases = [2.0, -0.5], [1.0, -3.0]
    scale = tile([[s] for s in scales]) if scale_column else scales[0]
    given = {"none": None, "number": biases[0]}.get(bias) if bias in {"none", "number"} else None
    if given is None and bias != "none":
        given = tile([[b] for b in biases], bias)
    dst = fresh((2, 3), "bfloat16")
    nisa.activation(dst, nl.tanh, tile(data), bias=given, scale=scale)
    for p, f in indices((2, 3)):
        s = scales[p] if scale_column else scales[0]
        b = 0.0 if bias == "none" else biases[0] if bias == "number" else biases[p]
        assert oracle.close(plain(dst)[p, f], math.tanh(data[p][f] * s + b), 2**-8)


def test_scale_and_bias_apply_to_every_free_dimension(trn2):
    data = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]
    dst = fresh((2, 4))
    nisa.activation(
        dst, nl.copy, tile(data), bias=tile([[1.0], [2.0]]), scale=tile([[10.0], [1.0]])
    )
    assert plain(dst).tolist() == [[11, 21, 31, 41], [7, 8, 9, 10]]


# --- accumulators of the scalar engine ----------------------------------------------------------
DATA = [[1.0, -2.0, 3.5], [0.5, 0.25, -8.0]]


def sums(data):
    out = []
    for row in data:
        total = 0.0
        for value in row:
            total += value
        out.append(total)
    return out


def test_reset_reduce_sums_the_activated_values(trn2):
    dst, total = fresh((2, 3)), fresh((2, 1))
    nisa.activation(
        dst, nl.square, tile(DATA), reduce_op=nl.add, reduce_res=total, reduce_cmd=CMD.reset_reduce
    )
    squares = [[x * x for x in row] for row in DATA]
    assert plain(dst).tolist() == squares
    assert plain(total)[:, 0].tolist() == sums(squares)


def test_activation_reduce_is_reset_reduce(trn2):
    dst, total = fresh((2, 3)), fresh((2, 1), "bfloat16")
    nisa.activation_reduce(dst, nl.copy, tile(DATA), nl.add, total, bias=1.0, scale=2.0)
    wanted = sums([[2 * x + 1 for x in row] for row in DATA])
    assert plain(total)[:, 0].tolist() == [oracle.store(x, "bfloat16") for x in wanted]


def test_reduce_continues_and_idle_leaves_the_sums(trn2):
    dst, total = fresh((2, 3)), fresh((2, 1))
    data = tile(DATA)
    nisa.activation(dst, nl.copy, data, reduce_op=nl.add, reduce_cmd=CMD.reset_reduce)
    nisa.activation(dst, nl.exp, data)
    nisa.activation(dst, nl.copy, data, reduce_op=nl.add, reduce_cmd=CMD.reduce, reduce_res=total)
    assert plain(total)[:, 0].tolist() == [2 * s for s in sums(DATA)]
    again = fresh((2, 1))
    nisa.activation(dst, nl.copy, data, reduce_res=again)
    assert plain(again)[:, 0].tolist() == plain(total)[:, 0].tolist()


def test_reset_only_resets(trn2):
    dst, total = fresh((2, 3)), fresh((2, 1))
    nisa.activation(dst, nl.copy, tile(DATA), reduce_cmd=CMD.reset, reduce_res=total)
    assert plain(total)[:, 0].tolist() == [0, 0]


def test_activation_sums_over_all_free_dimensions_before_rounding_to_dst(trn2):
    values = [[[256.0, 1.0], [1.0, 1.0]]]  # 257 is no bfloat16
    dst, total = fresh((1, 2, 2), "bfloat16"), fresh((1, 1))
    nisa.activation_reduce(dst, nl.copy, tile(values), nl.add, total, bias=0.001)
    assert oracle.close(plain(total)[0, 0], 259.004, 1e-6)


def test_reduce_res_may_be_part_of_dst(trn2):
    dst = fresh((2, 3))
    nisa.activation_reduce(dst, nl.copy, tile(DATA), nl.add, dst[:, 0:1])
    for p in range(2):
        assert plain(dst)[p].tolist() == [sums(DATA)[p], DATA[p][1], DATA[p][2]]


def test_lanes_belong_to_partitions(trn2):
    whole, dst, total = tile([[1.0]] * 32 + [[5.0]] * 32), fresh((32, 1)), fresh((32, 1))
    nisa.activation(dst, nl.copy, whole[0:32], reduce_op=nl.add, reduce_cmd=CMD.reset_reduce)
    nisa.activation(dst, nl.copy, whole[32:64], reduce_op=nl.add, reduce_cmd=CMD.reset_reduce)
    nisa.activation(
        dst, nl.copy, whole[0:32], reduce_op=nl.add, reduce_cmd=CMD.reduce, reduce_res=total
    )
    assert set(plain(total)[:, 0]) == {2.0}


def test_sums_that_nothing_reset_are_refused_and_nan_when_relaxed(trn2):
    dst, total = fresh((2, 3)), fresh((2, 1))
    with pytest.raises(RuleViolationError, match="NKI-ACCUMULATOR"):
        nisa.activation(dst, nl.copy, tile(DATA), reduce_op=nl.add, reduce_cmd=CMD.reduce)
    trn2.strict = False
    nisa.activation(
        dst, nl.copy, tile(DATA), reduce_op=nl.add, reduce_cmd=CMD.reduce, reduce_res=total
    )
    assert all(math.isnan(x) for x in plain(total)[:, 0])


# --- activate2 ----------------------------------------------------------------------------------
PAIRS = [
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
]


@pytest.mark.parametrize(("op0", "op1"), PAIRS)
@pytest.mark.parametrize("reverses", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("columns", [False, True])
def test_activate2_has_six_pairs(trn3, op0, op1, reverses, columns):
    if (reverses[0] and op0 == "bypass") or (reverses[1] and op1 == "bypass"):
        return
    first, second = [1.5, -2.0], [0.25, 3.0]
    imm0 = tile([[x] for x in first]) if columns else first[0]
    imm1 = tile([[x] for x in second]) if columns else second[0]
    dst = fresh((2, 3))
    nisa.activate2(
        dst,
        nl.relu,
        tile(DATA),
        imm0,
        imm1,
        getattr(nl, op0),
        getattr(nl, op1),
        reverse0=reverses[0],
        reverse1=reverses[1],
    )
    for p, f in indices((2, 3)):
        value = DATA[p][f]
        for op, imms, reverse in ((op0, first, reverses[0]), (op1, second, reverses[1])):
            imm = imms[p] if columns else imms[0]
            if op != "bypass":
                a, b = (imm, value) if reverse else (value, imm)
                value = oracle.ARITHMETIC[op](a, b)
        assert oracle.same(plain(dst)[p, f], max(value, 0.0))


def test_prelu_takes_its_slope_from_relu_param(trn3):
    dst = fresh((2, 3))
    bypass = nl.bypass
    nisa.activate2(dst, nl.prelu, tile(DATA), 0.0, 0.0, bypass, bypass, relu_param=0.5)
    assert plain(dst).tolist() == [[x if x > 0 else x * 0.5 for x in row] for row in DATA]
    slopes = tile([[2.0], [-1.0]])
    nisa.activate2(dst, nl.prelu, tile(DATA), 0.0, 0.0, bypass, bypass, relu_param=slopes)
    assert plain(dst).tolist() == [
        [x if x > 0 else x * slope for x in row]
        for row, slope in zip(DATA, (2.0, -1.0), strict=True)
    ]


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        ("add", [2.5, -7.25]),
        ("maximum", [3.5, 0.5]),
        ("minimum", [-2.0, -8.0]),
        ("abs_max", [3.5, -8.0]),
        ("abs_min", [1.0, 0.25]),
    ],
)
def test_activate2_reduces(trn3, op, wanted):
    dst, total = fresh((2, 3)), fresh((2, 1))
    bypass, reduce_op = nl.bypass, getattr(nl, op)
    nisa.activate2(
        dst,
        nl.copy,
        tile(DATA),
        0.0,
        0.0,
        bypass,
        bypass,
        reduce_op=reduce_op,
        reduce_res=total,
        reduce_cmd=CMD.reset_reduce,
    )
    assert plain(total)[:, 0].tolist() == wanted


# --- exponential --------------------------------------------------------------------------------
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16"])
def test_exponential_subtracts_the_maximum_first(trn3, column, dtype):
    data = [[1.0, -2.0, 3.0], [0.0, 2.0, -8.0]]
    tops = [3.0, 2.0]
    dst = fresh((2, 3))
    nisa.exponential(dst, tile(data, dtype), tile([[t] for t in tops]) if column else 3.0)
    for p, f in indices((2, 3)):
        top = tops[p] if column else 3.0
        assert oracle.close(plain(dst)[p, f], math.exp(data[p][f] - top), 1e-6)


def test_exponential_accumulates_on_the_vector_engine(trn3):
    data, dst, total = tile(DATA), fresh((2, 3)), fresh((2, 1))
    one = sums([[math.exp(x) for x in row] for row in DATA])
    nisa.exponential(dst, data, reduce_cmd=CMD.reset_reduce)
    nisa.exponential(dst, data, reduce_cmd=CMD.reduce, reduce_res=total)
    for p in range(2):
        assert oracle.close(plain(total)[p, 0], 2 * one[p], 2e-6)
    init = tile([[10.0], [20.0]])
    nisa.exponential(dst, data, reduce_cmd=CMD.load_reduce, reduce_init=init, reduce_res=total)
    for p in range(2):
        assert oracle.close(plain(total)[p, 0], 10.0 * (p + 1) + one[p], 2e-6)


def test_idle_leaves_the_vector_accumulators_undefined(trn3):
    data, dst, total = tile(DATA), fresh((2, 3)), fresh((2, 1))
    nisa.exponential(dst, data, reduce_cmd=CMD.reset_reduce)
    nisa.exponential(dst, data)
    with pytest.raises(RuleViolationError, match="NKI-ACCUMULATOR"):
        nisa.exponential(dst, data, reduce_cmd=CMD.reduce, reduce_res=total)
    trn3.strict = False
    nisa.exponential(dst, data, reduce_cmd=CMD.reduce, reduce_res=total)
    assert all(math.isnan(x) for x in plain(total)[:, 0])


def test_activations_count_on_the_scalar_engine(trn2):
    dst, total = fresh((2, 3)), fresh((2, 1))
    nisa.activation(dst, nl.copy, tile(DATA))
    assert trn2.counters.engines["scalar"].cycles == 3
    nisa.activation_reduce(dst, nl.copy, tile(DATA), nl.add, total)
    assert trn2.counters.engines["scalar"].cycles == 3 + 3 + 64
