# SPDX-License-Identifier: Apache-2.0
"""A call is recognised only where its signature is that of the first one."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trnport.adapters.inductor.calls import flatten
from trnport.core.known_call import KnownCall
from trnport.core.signature import signature_of


@attrs.frozen(eq=False)
class Meta:
    table: Any
    size: Any


LEAVES = st.sampled_from(
    [None, 0, 1, True, False, 0.0, -0.0, 1.0, float("nan"), "", "x", torch.int8]
)
TENSORS = st.builds(
    lambda shape, dtype: torch.zeros(shape, dtype=dtype),
    st.sampled_from([(), (1,), (2,), (1, 2), (2, 1)]),
    st.sampled_from([torch.int32, torch.float32]),
)
SHARED = [Meta(torch.zeros(2), 4), Meta(torch.ones(2), 4), Meta(torch.zeros(3), None)]


def extend(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(values, max_size=3)
        | st.lists(values, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), values, max_size=3)
        | st.builds(Meta, values, values)
    )


VALUES = st.recursive(LEAVES | TENSORS | st.sampled_from(SHARED), extend, max_leaves=8)
CALLS = st.tuples(
    st.lists(VALUES, max_size=2).map(tuple),
    st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=2),
)


def rebuilt(value: Any, memo: dict[int, Any]) -> Any:
    """An equal value of other objects, dictionaries in another order; shared ones stay shared."""
    if isinstance(value, torch.Tensor):
        return value + 1
    if isinstance(value, dict):
        return {key: rebuilt(value[key], memo) for key in reversed(value)}
    if isinstance(value, list | tuple):
        return type(value)(rebuilt(item, memo) for item in value)
    if isinstance(value, Meta):
        if id(value) not in memo:
            memo[id(value)] = Meta(rebuilt(value.table, memo), rebuilt(value.size, memo))
        return memo[id(value)]
    return value


@given(CALLS)
def test_a_call_of_other_tensors_is_recognised(call: tuple[Any, Any]) -> None:
    known = KnownCall(*call)
    memo: dict[int, Any] = {}
    args, kwargs = rebuilt(call[0], memo), rebuilt(call[1], memo)
    found, expected = known.tensors(args, kwargs), flatten(args, kwargs)[0]
    assert found is not None
    assert list(map(id, found)) == list(map(id, expected))


@given(CALLS, CALLS)
def test_what_is_recognised_has_the_same_signature(
    one: tuple[Any, Any], two: tuple[Any, Any]
) -> None:
    if KnownCall(*one).tensors(*two) is not None:
        assert signature_of(*one) == signature_of(*two)
        assert repr(flatten(*one)[1]) == repr(flatten(*two)[1])  # repr: NaN differs from itself


CHANGES: dict[str, dict[str, Any]] = {
    "shape": {"x": torch.ones(2, 4)},
    "rank": {"x": torch.ones(2, 3, 1)},
    "dtype": {"x": torch.ones(2, 3, dtype=torch.bfloat16)},
    "device": {"x": torch.ones(2, 3, device="meta")},
    "no tensor": {"x": None},
    "a tensor": {"size": torch.ones(())},
    "leaf": {"size": 5},
    "type of a leaf": {"size": 4.0},
    "another argument": {"more": None},
    "shape of a field": {"layers": dict.fromkeys("ab", Meta(torch.zeros(3), 4))},
    "leaf of a field": {"layers": dict.fromkeys("ab", Meta(torch.zeros(2), 5))},
    "another key": {"layers": dict.fromkeys("ac", SHARED[0])},
    "a key less": {"layers": dict.fromkeys("a", SHARED[0])},
    "not shared": {"layers": dict(zip("ab", SHARED, strict=False))},
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_noticed(kind: str) -> None:
    call = {"x": torch.ones(2, 3), "size": 4, "layers": dict.fromkeys("ab", SHARED[0])}
    known = KnownCall((), call)
    assert known.tensors((), call) is not None
    assert known.tensors((), call | CHANGES[kind]) is None
    assert known.tensors((1,), call) is None


def test_objects_that_were_apart_must_not_be_one() -> None:
    known = KnownCall((), {"layers": dict(zip("ab", SHARED, strict=False))})
    assert known.tensors((), {"layers": dict.fromkeys("ab", SHARED[0])}) is None
