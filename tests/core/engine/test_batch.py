# SPDX-License-Identifier: Apache-2.0
"""Batch state, phases, slots and blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnport.core.engine.batch import BatchState, Request, split_by_phase
from trnport.core.engine.blocks import BlockPool
from trnport.core.errors import CapacityError, RequestError
from trnport.core.kv.slots import PAD_SLOT, slot_mapping


def request(name: str, total: int, computed: int = 0) -> Request:
    return Request(name, [1] * total, total, num_computed_tokens=computed)


def test_requests_keep_their_order_and_leave_once_or_twice() -> None:
    batch = BatchState()
    for name in "bac":
        batch.add(request(name, 1))
    batch.remove("a")
    batch.remove("a")
    assert [r.request_id for r in batch] == ["b", "c"]
    assert "a" not in batch
    assert len(batch) == 2


def test_a_second_request_of_one_name_is_refused() -> None:
    batch = BatchState()
    batch.add(request("a", 1))
    with pytest.raises(RequestError, match="'a' is already"):
        batch.add(request("a", 1))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="empty prompt"):
        BatchState().add(request("a", 0))


@pytest.mark.parametrize(
    ("total", "computed", "new", "decode", "end"),
    [
        (5, 0, 5, False, True),
        (5, 0, 3, False, False),
        (5, 3, 2, False, True),
        (1, 0, 1, False, True),  # a one-token prompt has nothing cached to decode over
        (5, 4, 1, True, True),  # generation, a cached prompt's last token, or a resumed request
        (5, 2, 1, True, False),  # a one-token chunk samples nothing
    ],
)
def test_phase_and_end_follow_the_counts(
    total: int, computed: int, new: int, decode: bool, end: bool
) -> None:
    batch = BatchState()
    batch.add(request("a", total, computed))
    prefills, decodes = split_by_phase(batch, {"a": new})
    assert bool(decodes) == decode
    assert bool(prefills) != decode
    assert (prefills + decodes)[0].reaches_end == end


@given(
    st.integers(1, 7), st.lists(st.integers(1, 50), unique=True, max_size=8), st.integers(0, 60),
    st.integers(0, 10),
)  # fmt: skip
def test_slots_stay_inside_the_requests_own_blocks(
    block_size: int, blocks: list[int], start: int, count: int
) -> None:
    slots = slot_mapping(blocks, start, start + count, block_size)
    assert len(slots) == count
    for position, slot in enumerate(slots, start):
        if position < len(blocks) * block_size:
            block, offset = blocks[position // block_size], position % block_size
            assert divmod(slot, block_size) == (block, offset)
        else:
            assert slot == PAD_SLOT


def test_the_null_block_is_never_a_slot() -> None:
    assert slot_mapping([0, 3], 0, 4, 2) == [PAD_SLOT, PAD_SLOT, 6, 7]


def test_the_pool_never_hands_out_the_null_block_and_refuses_whole() -> None:
    pool = BlockPool(4)
    with pytest.raises(CapacityError, match="4 KV blocks are needed, 3 are free"):
        pool.take(4)
    assert sorted(pool.take(3)) == [1, 2, 3]
    pool.give_back([2])
    assert pool.take(1) == [2]
