# SPDX-License-Identifier: Apache-2.0
"""Storage: what was written, what is live, and what explicit addresses share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.nki.support import breaks, filled
from trnport.adapters.nki.simulator import language as _language
from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.access import read, read_f32, read_int, write

nl: Any = _language


@pytest.fixture(autouse=True)
def core() -> Iterator[machine.Core]:
    with machine.session() as running:
        yield running


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_reads_see_exactly_what_was_written(data: st.DataObject) -> None:
    """Random rectangles: a read passes if, and only if, every element was written."""
    with machine.session():
        t = nl.ndarray((5, 9), nl.bfloat16)
        known = np.full((5, 9), np.nan, np.float32)
        for value in range(data.draw(st.integers(1, 6))):
            rows, columns = _part(data, 5, 1), _part(data, 9, 2)
            write(t[rows, columns], value)
            known[rows, columns] = value
            rows, columns = _part(data, 5, 1), _part(data, 9, 2)
            if np.isnan(known[rows, columns]).any():
                with breaks("NKI-UNWRITTEN"):
                    read(t[rows, columns])
            else:
                np.testing.assert_array_equal(read_f32(t[rows, columns]), known[rows, columns])


def _part(data: st.DataObject, size: int, most: int) -> slice:
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    return slice(start, stop, data.draw(st.integers(1, most)))


def test_half_of_a_word_is_not_the_word() -> None:
    t = nl.ndarray((2, 4), nl.float32)
    write(t.view(nl.uint16)[:, ::2], 0)
    with breaks("NKI-UNWRITTEN"):
        read(t)
    write(t.view(nl.uint16)[:, 1::2], 0x3F80)
    assert (read(t) == 1).all()


def test_live_tensors_count_and_dropped_ones_do_not(core: machine.Core) -> None:
    for _ in range(20):
        tile = nl.ndarray((128, 20_000), nl.bfloat16)
    assert core.counters.sbuf_peak == 80_000  # the old one lives until the new one has its name
    del tile
    views = [nl.ndarray((1, 25_000), nl.int8)[:, 0:1] for _ in range(8)]
    assert core.counters.sbuf_peak == 200_000  # a view keeps its storage
    with breaks("NKI-SBUF-CAPACITY"):
        nl.ndarray((1, 13_000), nl.int8)
    views.clear()
    nl.ndarray((1, 13_000), nl.int8)
    nl.ndarray((8, 512), nl.float32, nl.psum)
    assert core.counters.psum_peak == 2048


def test_explicit_addresses_count_once_where_they_overlap(core: machine.Core) -> None:
    first = nl.ndarray((4, 100), nl.float32, address=(0, 0))
    second = nl.ndarray((4, 100), nl.float32, address=(32, 200))
    third = nl.ndarray((4, 10), nl.float32, address=(0, 1000))
    assert core.counters.sbuf_peak == 600 + 40
    assert (first.start_partition, second.start_partition) == (0, 32)
    assert second[2:3].start_partition == 34
    assert third.storage.aliases == []


@pytest.mark.parametrize("precise", [False, True])
def test_writing_over_a_live_tensor_makes_its_values_unwritten(precise: bool) -> None:
    with machine.session(precise=precise):
        below = nl.ndarray((64, 8), nl.bfloat16, address=(0, 0))
        above = nl.ndarray((32, 4), nl.float32, address=(32, 8))  # columns 4 to 8 of rows 32 on
        write(below, 1.0)
        write(above, 2.0)
        assert (read_f32(above) == 2).all()
        assert (read_f32(below[0:32]) == 1).all()
        assert (read_f32(below[:, 0:4]) == 1).all()
        with breaks("NKI-UNWRITTEN"):
            read(below[32:64])
        write(below[32:64, 4:5], 3.0)
        with breaks("NKI-UNWRITTEN"):
            read(above)
        write(above, 4.0)
        with breaks("NKI-UNWRITTEN"):
            read(below[32:64, 4:5])


def test_an_address_may_be_reused_after_its_tensor_is_done() -> None:
    for value in range(4):
        tile = nl.ndarray((4, 8), nl.float32, address=(0, 64))
        write(tile, value)
        assert (read(tile) == value).all()


def test_psum_remembers_matmuls_only_at_their_own_address() -> None:
    one = nl.ndarray((4, 8), nl.float32, nl.psum, address=(0, 2048))
    two = nl.ndarray((4, 8), nl.float32, nl.psum, address=(0, 2048))
    write(one, 1.0)
    write(two, 2.0)
    with breaks("NKI-UNWRITTEN"):
        read(one)


def test_values_are_cast_and_may_be_scalars_or_reshaped() -> None:
    t = nl.ndarray((2, 2, 3), nl.int16)
    write(t, np.arange(12).reshape(2, 6))
    np.testing.assert_array_equal(read_int(t), np.arange(12).reshape(2, 2, 3))
    write(t, 5)
    assert (read(t) == 5).all()
    with pytest.raises(ValueError, match="reshape"):
        write(t, np.zeros((2, 5)))


def test_names_appear_in_messages() -> None:
    t = nl.ndarray((2, 2), nl.float32, name="scores")
    with breaks("NKI-UNWRITTEN") as caught:
        read(t[:, 0:1], "exp")
    assert "exp: " in str(caught.value)
    assert "scores" in str(caught.value)
    assert repr(filled(np.ones((1, 2), np.float32))) == "<NkiTensor (1, 2) float32 sbuf>"
