# SPDX-License-Identifier: Apache-2.0
"""Row changes lead from one order of requests to the other and keep each one's state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnport.adapters.vllm.rows import SWAP, UNIDIRECTIONAL, row_changes

pytestmark = pytest.mark.vllm

orders = st.permutations(list("abcdefg")).flatmap(
    lambda ids: st.integers(0, len(ids)).map(lambda n: list(ids[:n]))
)


def apply(before, changes):
    """What a processor does with the changes, as vLLM documents it."""
    state = dict(enumerate(before))
    for row in changes.removed:
        del state[row]
    for row, request_id in changes.added:
        state[row] = f"new {request_id}"
    for source, target, kind in changes.moved:
        moved, displaced = state.pop(source), state.pop(target, None)
        state[target] = moved
        if kind == SWAP:
            assert displaced is not None, "a swap needs two requests"
            state[source] = displaced
        else:
            assert displaced is None, "a move must not drop a request"
    return state


@given(orders, orders)
def test_applying_the_changes_gives_the_new_order(before, after):
    state = apply(before, row_changes(before, after))
    expected = [i if i in before else f"new {i}" for i in after]
    assert state == dict(enumerate(expected))


@given(orders)
def test_the_same_order_is_no_change(order):
    assert not row_changes(order, order)


def test_a_new_request_takes_over_a_freed_row():
    changes = row_changes(["a", "b"], ["a", "c"])
    assert changes.removed == () and changes.added == ((1, "c"),) and changes.moved == ()


def test_the_last_request_moves_into_the_gap():
    changes = row_changes(["a", "b", "c"], ["c", "b"])
    assert changes.removed == (0,)
    assert changes.moved == ((2, 0, UNIDIRECTIONAL),)
