# SPDX-License-Identifier: Apache-2.0
"""Predicated copies and selections, against loops over plain numbers."""

import math

import pytest

from tests.adapters.nki import plain as oracle
from tests.adapters.nki.tiles import fresh, indices, plain, tile
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator.rules import RuleViolationError

INF = math.inf
CMD = nisa.reduce_cmd
FILL = -3.4028234663852886e38
COMPARE = {
    "equal": lambda a, b: a == b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
}


# --- tensor_copy_predicated ---------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("predicate", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("reverse", [False, True])
def test_predicated_copy_leaves_the_rest_as_it_was(trn2, dtype, predicate, reverse):
    before, source = [[1, 2, 3], [4, 5, 6]], [[11, 12, 13], [14, 15, 16]]
    chosen = [[0, 1, 255], [7, 0, 0]]
    dst = tile(before, dtype)
    nisa.tensor_copy_predicated(dst, tile(source, dtype), tile(chosen, predicate), reverse)
    for p, f in indices((2, 3)):
        take = (chosen[p][f] != 0) != reverse
        assert plain(dst)[p, f] == (source[p][f] if take else before[p][f])


def test_predicated_copy_of_a_constant_and_of_32_bits(trn2):
    dst = tile([[2**24 + 1, 5]], "int32")
    nisa.tensor_copy_predicated(dst, 7, tile([[0, 1]], "uint8"))
    assert plain(dst)[0].tolist() == [2**24 + 1, 7]
    nisa.tensor_copy_predicated(dst, tile([[0, 2**31 - 1]], "int32"), tile([[0, 1]], "uint8"))
    assert plain(dst)[0].tolist() == [2**24 + 1, 2**31 - 1]


def test_predicated_operands_may_differ_in_rank(trn2):
    dst = tile([[[0.0] * 2] * 3] * 2)
    source = tile([[float(p * 6 + f) for f in range(6)] for p in range(2)])
    chosen = tile([[[1, 0, 1], [0, 1, 1]]] * 2, "uint8")
    nisa.tensor_copy_predicated(dst, source, chosen)
    flags = [1, 0, 1, 0, 1, 1]
    for p, a, b in indices((2, 3, 2)):
        f = a * 2 + b
        assert plain(dst)[p, a, b] == (p * 6 + f if flags[f] else 0)


def test_elements_that_are_not_selected_stay_unwritten(trn2):
    dst = fresh((1, 2))
    nisa.tensor_copy_predicated(dst, tile([[1.0, 2.0]]), tile([[1, 0]], "uint8"))
    with pytest.raises(RuleViolationError, match="NKI-UNWRITTEN"):
        nisa.tensor_copy(fresh((1, 2)), dst)
    nisa.tensor_copy_predicated(dst, tile([[1.0, 2.0]]), tile([[1, 0]], "uint8"), True)
    assert plain(dst)[0].tolist() == [1.0, 2.0]
    nisa.tensor_copy(fresh((1, 2)), dst)


# --- affine_select ------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(COMPARE))
@pytest.mark.parametrize(
    ("pattern", "channel", "offset"),
    [([[-1, 5]], 1, 0), ([[2, 3], [-3, 4]], -1, 3), ([[1, 2], [0, 1], [-1, 2], [1, 2]], 2, -2)],
)
def test_affine_select_follows_the_loop_of_the_documentation(trn2, name, pattern, channel, offset):
    shape = (4, *[count for _, count in pattern])
    values = {index: float(i + 1) for i, index in enumerate(indices(shape))}
    src, dst = fresh(shape), fresh(shape)
    nisa.memset(src, 0.0)
    for index, value in values.items():
        src.array()[index] = value
    nisa.affine_select(dst, pattern, channel, src, -7.5, cmp_op=getattr(nl, name), offset=offset)
    for index in indices(shape):
        affine = offset + index[0] * channel
        for (step, _), position in zip(pattern, index[1:], strict=True):
            affine += step * position
        wanted = values[index] if COMPARE[name](affine, 0) else -7.5
        assert plain(dst)[index] == wanted


def test_affine_select_makes_a_causal_mask_in_bfloat16_with_a_register(trn2):
    scores, dst = tile([[1.0] * 4] * 4), fresh((4, 4), "bfloat16")
    register = nisa.register_alloc(1)
    nisa.affine_select(dst, [[-1, 4]], 1, scores, -1e30, cmp_op=nl.greater_equal, offset=register)
    low = oracle.store(oracle.f32(-1e30), "bfloat16")
    for p, f in indices((4, 4)):
        assert plain(dst)[p, f] == (1.0 if f <= p + 1 else low)


def test_affine_select_copies_bits_between_equal_dtypes(trn2):
    dst = fresh((1, 2), "int32")
    nisa.affine_select(dst, [[1, 2]], 0, tile([[2**24 + 1, 9]], "int32"), 3.0)
    assert plain(dst)[0].tolist() == [2**24 + 1, 3]


# --- range_select -------------------------------------------------------------------------------
@pytest.mark.parametrize("first", sorted(COMPARE))
@pytest.mark.parametrize("second", ["less", "greater_equal", "equal"])
def test_range_select_keeps_indices_between_bounds(trn2, first, second):
    data = [[5.0, -1.0, 7.0, 2.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0]]
    bound0, bound1, start = [11.0, 12.0], [13.0, 14.0], 10
    dst, top = fresh((2, 5)), fresh((2, 1))
    nisa.range_select(
        dst,
        tile(data),
        getattr(nl, first),
        getattr(nl, second),
        tile([[b] for b in bound0]),
        tile([[b] for b in bound1]),
        reduce_res=top,
        range_start=start,
        on_false_value=FILL,
    )
    for p in range(2):
        row = []
        for f in range(5):
            i = float(start + f)
            keep = COMPARE[first](i, bound0[p]) and COMPARE[second](i, bound1[p])
            row.append(data[p][f] if keep else FILL)
        assert plain(dst)[p].tolist() == row
        assert plain(top)[p, 0] == max(row)


def test_range_select_numbers_all_free_dimensions_and_fills_low_precision_with_infinity(trn2):
    data = [[[1.0, 2.0], [3.0, 4.0]]]
    dst, top = fresh((1, 2, 2), "bfloat16"), fresh((1, 1))
    low, high = tile([[4.0]]), tile([[9.0]])
    nisa.range_select(dst, tile(data), nl.greater_equal, nl.less, low, high, reduce_res=top)
    assert plain(dst)[0].tolist() == [[-INF, -INF], [-INF, -INF]]
    assert plain(top)[0, 0] == FILL


def test_range_select_reduces_over_several_tiles(trn2):
    low, high, top = tile([[0.0]]), tile([[100.0]]), fresh((1, 1))
    args = (nl.greater_equal, nl.less, low, high)
    dst = fresh((1, 2))
    nisa.range_select(dst, tile([[8.0, 3.0]]), *args)
    nisa.range_select(dst, tile([[1.0, 5.0]]), *args, reduce_cmd=CMD.reduce, reduce_res=top)
    assert plain(top)[0, 0] == 8.0


# --- select_reduce ------------------------------------------------------------------------------
@pytest.mark.parametrize("predicate", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("column", [False, True])
def test_select_reduce_takes_one_or_the_other(trn2, predicate, reverse, column):
    chosen, values, others = [[0, 1, 2], [0, 0, 1]], [[1.0, 2, 3], [4, 5, 6]], [-1.0, 10.0]
    dst, top = fresh((2, 3), "bfloat16"), fresh((2, 1))
    nisa.select_reduce(
        dst,
        tile(chosen, predicate),
        tile(values),
        tile([[x] for x in others]) if column else others[0],
        reduce_res=top,
        reduce_cmd=CMD.reset_reduce,
        reverse_pred=reverse,
    )
    for p in range(2):
        other = others[p] if column else others[0]
        row = [values[p][f] if (chosen[p][f] != 0) != reverse else other for f in range(3)]
        assert plain(dst)[p].tolist() == row
        assert plain(top)[p, 0] == max(row)


def test_select_reduce_continues_and_idle_undefines(trn2):
    dst, top = fresh((1, 2)), fresh((1, 1))
    ones = tile([[1, 1]], "uint8")
    nisa.select_reduce(dst, ones, tile([[3.0, 8.0]]), 0.0, reduce_cmd=CMD.reset_reduce)
    nisa.select_reduce(dst, ones, tile([[4.0, 1.0]]), 0.0, reduce_cmd=CMD.reduce, reduce_res=top)
    assert plain(top)[0, 0] == 8.0
    nisa.select_reduce(dst, ones, tile([[4.0, 1.0]]), 0.0)
    with pytest.raises(RuleViolationError, match="NKI-ACCUMULATOR"):
        nisa.select_reduce(dst, ones, tile([[4.0, 1.0]]), 0.0, reduce_cmd=CMD.reduce)
