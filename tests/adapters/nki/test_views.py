# SPDX-License-Identifier: Apache-2.0
"""Views against numpy: the same chain of operations on a tensor and on an array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.nki.support import breaks, counting, filled
from trnport.adapters.nki.simulator import NotSimulatedError, machine
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator.access import read, write


@pytest.fixture(autouse=True)
def core() -> Iterator[machine.Core]:
    with machine.session() as running:
        yield running


def _sizes(draw: Any, total: int) -> list[int]:
    """Random factors of `total`, in order."""
    sizes = []
    while total > 1:
        size = draw(st.sampled_from([n for n in range(2, total + 1) if total % n == 0]))
        sizes.append(size)
        total //= size
    return sizes or [1]


@st.composite
def _chains(draw: Any) -> tuple[bool, tuple[int, ...], list[Any]]:
    on_chip = draw(st.booleans())
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=4)))
    steps = draw(st.lists(st.tuples(st.integers(0, 5), st.randoms()), max_size=5))
    return on_chip, shape, steps


def _step(kind: int, random: Any, t: Any, a: np.ndarray, first: int) -> tuple[Any, np.ndarray]:
    """Apply one random operation to both; `first` is the first dimension that may change."""
    if a.ndim <= first:
        return t, a
    dim = random.randrange(first, a.ndim)
    if kind == 0:
        start = random.randrange(a.shape[dim])
        stop = random.randrange(start + 1, a.shape[dim] + 1)
        step = random.randrange(1, 3)
        key = (slice(None),) * dim + (slice(start, stop, step),)
        return t[key], a[key]
    if kind == 1:
        dims = list(range(first, a.ndim))
        random.shuffle(dims)
        order = [*range(first), *dims]
        return t.permute(order), a.transpose(order)
    if kind == 2 and a.ndim < 5:
        return t.expand_dim(dim), np.expand_dims(a, dim)
    if kind == 3 and a.shape[dim] == 1:
        size = random.randrange(1, 4)
        return t.broadcast(dim, size), np.repeat(a, size, axis=dim)
    if kind == 4 and a.ndim > first + 1 and a.ndim > 2:
        position = random.randrange(a.shape[dim])
        return t.select(dim, position), a.take(position, axis=dim)
    if kind == 5:
        factors = [n for n in range(1, a.shape[dim] + 1) if a.shape[dim] % n == 0]
        size = random.choice(factors)
        shape = (*a.shape[:dim], size, a.shape[dim] // size, *a.shape[dim + 1 :])
        return t.reshape_dim(dim, (size, -1)), a.reshape(shape)
    return t, a


@given(_chains())
@settings(max_examples=150, deadline=None)
def test_chains_of_views_match_numpy(chain: Any) -> None:
    on_chip, shape, steps = chain
    with machine.session():
        t = counting(shape, nl.sbuf if on_chip else nl.hbm)
        a = np.arange(np.prod(shape)).reshape(shape)
        for kind, random in steps:
            t, a = _step(kind, random, t, a, 1 if on_chip else 0)
        assert t.shape == a.shape
        np.testing.assert_array_equal(read(t), a)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_reshape_matches_numpy_or_refuses_where_numpy_would_copy(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    base = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    order = data.draw(st.permutations(range(len(shape))))
    step = data.draw(st.integers(1, 2))
    view = base.transpose(order)[::step]
    wanted = _sizes(data.draw, view.size)
    with machine.session():
        t = counting(shape, nl.hbm).permute(order)[::step]
        try:
            expected = view.view()
            expected.shape = tuple(wanted)
        except AttributeError:
            with breaks("NKI-VIEW-LAYOUT"):
                t.reshape(wanted)
        else:
            np.testing.assert_array_equal(read(t.reshape(wanted)), expected)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_ap_matches_as_strided(data: Any) -> None:
    row = data.draw(st.integers(4, 40))
    partitions = data.draw(st.integers(1, 8))
    start = data.draw(st.integers(0, partitions - 1))
    count = data.draw(st.integers(1, partitions - start))
    first = data.draw(st.integers(0, row - 1))
    pairs, reach = [[row, count]], first
    for _ in range(data.draw(st.integers(1, 3))):
        stride = data.draw(st.integers(0, 4))
        most = (row - 1 - reach) // stride + 1 if stride else 3
        size = data.draw(st.integers(1, most))
        pairs.append([stride, size])
        reach += stride * (size - 1)
    base = np.arange(partitions * row, dtype=np.int32)
    offset = start * row + first
    expected = np.lib.stride_tricks.as_strided(
        base[offset:], [n for _, n in pairs], [s * 4 for s, _ in pairs]
    )
    with machine.session():
        t = counting((partitions, row)).ap(pairs, offset=offset)
        np.testing.assert_array_equal(read(t), expected)
        assert t.get_pattern() == pairs


def test_writes_through_a_view_reach_only_its_elements() -> None:
    t = counting((4, 6))
    write(t[1:3, 1:6:2], np.full((2, 3), -1))
    expected = np.arange(24).reshape(4, 6)
    expected[1:3, 1:6:2] = -1
    np.testing.assert_array_equal(read(t), expected)


def test_on_chip_integers_keep_partition_and_rank() -> None:
    t = counting((4, 6, 2))
    assert t[1].shape == (1, 6, 2)
    assert t[1, 2].shape == (1, 2)
    assert t[:, 2, 1].shape == (4, 1)
    assert t[-1, -1, -1].shape == (1, 1)
    assert int(read(t[-1, -1, -1])[0, 0]) == 47


def test_hbm_integers_drop_dimensions_down_to_one() -> None:
    t = counting((4, 6, 2), nl.hbm)
    assert t[1].shape == (6, 2)
    assert t[1, 2].shape == (2,)
    assert t[1, 2, 1].shape == (1,)
    assert t[..., 1].shape == (4, 6)


def test_dynamic_slice_is_start_and_size() -> None:
    np.testing.assert_array_equal(
        read(counting((4, 6))[:, nl.ds(2, 3)]), np.arange(24).reshape(4, 6)[:, 2:5]
    )


def test_rearrange_splits_orders_and_merges() -> None:
    a = np.arange(4 * 24).reshape(4, 24)
    t = counting((4, 24))
    found = t.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})
    np.testing.assert_array_equal(read(found), a.reshape(4, 4, 6).transpose(0, 2, 1))
    merged = counting((4, 2, 3, 5)).rearrange(("b", "x", "y", "z"), ("b", ("x", "y"), "z"))
    np.testing.assert_array_equal(read(merged), np.arange(120).reshape(4, 6, 5))
    assert t.flatten_dims(1, 1).shape == (4, 24)


def test_view_reinterprets_bits() -> None:
    a = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    t = filled(a)
    np.testing.assert_array_equal(read(t.view(nl.uint16)), a.view(np.uint16))
    np.testing.assert_array_equal(read(t[:, 2:6].view("uint8")), a[:, 2:6].copy().view(np.uint8))
    np.testing.assert_array_equal(read(t.view("uint8").view("float32")), a)
    np.testing.assert_array_equal(
        read(t.ap([[16, 3], [1, 4]], offset=4, dtype="uint16")), a.view(np.uint16)[:, 4:8]
    )
    with breaks("NKI-VIEW-LAYOUT"):
        t[:, ::2].view("uint8")
    with breaks("NKI-VIEW-SIZE"):
        counting((3, 6), dtype="uint8").view("float32")


def test_precise_mode_refuses_to_look_at_bits_it_does_not_hold() -> None:
    with machine.session(precise=True):
        with pytest.raises(NotSimulatedError, match="bfloat16"):
            filled(np.ones((2, 4)), dtype="bfloat16").view("uint16")
        assert read(filled(np.ones((2, 4)), dtype="float32").view("int32"))[0, 0] == 0x3F800000


def test_contiguity_ignores_the_partition_dimension_on_chip() -> None:
    assert counting((4, 6))[1:3].is_contiguous()
    assert not counting((4, 6))[:, ::2].is_contiguous()
    assert counting((4, 6))[:, 0:3].is_contiguous()
    assert not counting((4, 6), nl.hbm)[:, 0:3].is_contiguous()
    assert not counting((4, 6)).is_indirect()


def test_dynamic_select_reads_where_the_index_points() -> None:
    a = np.arange(5 * 4 * 3).reshape(5, 4, 3)
    t = counting((5, 4, 3), nl.hbm)
    index = filled(np.array([[3]], np.int32))
    np.testing.assert_array_equal(read(t.select(0, index)), a[3])
    np.testing.assert_array_equal(read(t.select(1, index)), a[:, 3])
    assert t.select(0, index).is_indirect()
    write(index, 4)
    np.testing.assert_array_equal(read(t.select(0, index)), a[4])
    with breaks("NKI-OOB"):
        read(t.select(1, index))


def test_a_dynamic_index_ends_with_the_view_not_with_its_tensor() -> None:
    part = counting((5, 4), nl.hbm)[0:3]
    index = filled(np.array([[2]], np.int32))
    np.testing.assert_array_equal(read(part.select(0, index)), [8, 9, 10, 11])
    write(index, 3)
    with breaks("NKI-OOB"):
        read(part.select(0, index))


def test_vector_select_gives_each_partition_its_row() -> None:
    a = np.arange(5 * 4 * 3).reshape(5, 4, 3)
    t = counting((5, 4, 3), nl.hbm)
    index = filled(np.array([[3], [0], [3], [1]], np.int32))
    np.testing.assert_array_equal(read(t.vector_select(0, index)), a[[3, 0, 3, 1]])
    part = t.vector_select(0, index)[:, 1:3, ::2]
    np.testing.assert_array_equal(read(part), a[[3, 0, 3, 1], 1:3, ::2])
    write(t.vector_select(0, filled(np.array([[4], [2]], np.int32))), np.full((2, 4, 3), -1))
    assert (read(t)[[2, 4]] == -1).all()
    np.testing.assert_array_equal(read(t)[[0, 1, 3]], a[[0, 1, 3]])


def test_scalar_offset_counts_in_rows_of_the_indirect_dimension() -> None:
    a = np.arange(6 * 8)
    t = counting((6, 8), nl.hbm)
    index = filled(np.array([[2]], np.int32))
    found = t.ap([[8, 2], [1, 4]], offset=3, scalar_offset=index, indirect_dim=0)
    np.testing.assert_array_equal(read(found), a.reshape(6, 8)[2:4, 3:7])
    found = t.ap([[8, 6], [1, 4]], scalar_offset=index, indirect_dim=1)
    np.testing.assert_array_equal(read(found), a.reshape(6, 8)[:, 2:6])
    chip = counting((6, 8)).ap([[8, 6], [1, 4]], scalar_offset=index, indirect_dim=1)
    np.testing.assert_array_equal(read(chip), a.reshape(6, 8)[:, 2:6])
    write(index, 5)
    with breaks("NKI-OOB"):
        read(chip)  # would run into the next partition


def test_column_indirection_is_a_snake_over_groups_of_partitions() -> None:
    with machine.session("trn3"):
        a = np.arange(32 * 40, dtype=np.int32).reshape(32, 40)
        order = np.random.default_rng(1).permutation(40)[:32].astype(np.uint16)
        index = np.tile(order.reshape(2, 16).T, (2, 1))
        found = filled(a).indirect(filled(index), 20)
        np.testing.assert_array_equal(read(found), a[:, order[:20]])
        t = filled(np.zeros((32, 40), np.int32))
        write(t.indirect(filled(index), 20), a[:, :20])
        np.testing.assert_array_equal(read(t)[:, order[:20]], a[:, :20])


def test_a_tensor_is_not_assigned_to() -> None:
    with pytest.raises(TypeError, match="tensor_copy"):
        counting((2, 2))[0, 0] = 1
