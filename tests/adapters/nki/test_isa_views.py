# SPDX-License-Identifier: Apache-2.0
"""Any view of a tile gives what a compact copy of the view gives, for every kind of instruction."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.nki.tiles import fresh, tile
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator import machine

ADD, MULTIPLY = nl.add, nl.multiply


def scan(dst, a, b):
    nisa.tensor_tensor_scan(dst, a, b, 0.5, MULTIPLY, ADD)


def cumulative(dst, a, _):
    nisa.tensor_scalar_cumulative(dst, a, MULTIPLY, ADD, 0.5)


def predicated(dst, a, b):
    chosen = fresh(b.shape, "uint8")
    nisa.tensor_scalar(chosen, b, nl.greater, 0.0)
    nisa.memset(dst, 9.0)
    nisa.tensor_copy_predicated(dst, a, chosen)


def masked(dst, a, _):
    nisa.affine_select(dst, [[1, dst.free_size]], -1, a, 4.0, cmp_op=nl.greater)


def ranged(dst, a, _):
    bound = fresh((a.shape[0], 1))
    nisa.memset(bound, 1.0)
    top = fresh((a.shape[0], 1))
    nisa.range_select(dst, a, nl.greater_equal, nl.less_equal, bound, bound, reduce_res=top)
    nisa.tensor_scalar(dst, dst, nl.maximum, top)


INSTRUCTIONS = {
    "tensor_copy": lambda dst, a, _: nisa.tensor_copy(dst, a),
    "tensor_tensor": lambda dst, a, b: nisa.tensor_tensor(dst, a, b, nl.subtract),
    "tensor_scalar": lambda dst, a, _: nisa.tensor_scalar(
        dst, a, MULTIPLY, 3.0, op1=ADD, operand1=1.0
    ),
    "scalar_tensor_tensor": lambda dst, a, b: nisa.scalar_tensor_tensor(
        dst, a, ADD, 2.0, MULTIPLY, b
    ),
    "activation": lambda dst, a, _: nisa.activation(dst, nl.silu, a, bias=0.5, scale=2.0),
    "reciprocal": lambda dst, a, _: nisa.reciprocal(dst, a),
    "tensor_tensor_scan": scan,
    "tensor_scalar_cumulative": cumulative,
    "tensor_copy_predicated": predicated,
    "affine_select": masked,
    "range_select": ranged,
}


@st.composite
def views(draw):
    """A base shape, and a function that takes a view of a tile or of an array."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=4)))
    cuts = [slice(None)]
    for size in shape[1:]:
        start = draw(st.integers(0, size - 1))
        cuts.append(slice(start, draw(st.integers(start + 1, size)), draw(st.integers(1, 2))))
    order = [0, *draw(st.permutations(range(1, len(shape))))]
    return shape, tuple(cuts), tuple(order)


def cut(t, chosen):
    _, cuts, order = chosen
    part = t[cuts]
    return part.transpose(order) if isinstance(part, np.ndarray) else part.permute(order)


@pytest.mark.parametrize("name", sorted(INSTRUCTIONS))
@settings(max_examples=12, deadline=None)
@given(chosen=views(), seed=st.integers(0, 2**16), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_views_equal_compact_copies(name, chosen, seed, dtype):
    rng = np.random.default_rng(seed)
    first, second = (rng.integers(-8, 9, chosen[0]).astype(np.float32) for _ in range(2))
    compact = [cut(values, chosen) for values in (first, second)]
    with machine.session("trn2"):
        wanted = fresh(compact[0].shape, dtype)
        INSTRUCTIONS[name](wanted, tile(compact[0], dtype), tile(compact[1], dtype))
        base = tile(np.full(chosen[0], 77.0), dtype)
        part = cut(base, chosen)
        INSTRUCTIONS[name](part, cut(tile(first, dtype), chosen), cut(tile(second, dtype), chosen))
        assert np.array_equal(part.array(), wanted.array(), equal_nan=True)
        outside = np.ones(chosen[0], bool)
        cut(outside, chosen)[...] = False
        assert (base.array()[outside] == 77.0).all()
