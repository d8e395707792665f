# SPDX-License-Identifier: Apache-2.0
"""Capacity is what the store allocates and the pool hands out, to the byte."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trnport.adapters.paged import PagedKVCacheStore
from trnport.core.engine.blocks import BlockPool
from trnport.core.errors import CapacityError
from trnport.core.kv import KVSpec, LayerSpec
from trnport.core.kv.capacity import KVCapacity

sizes = st.integers(1, 200)


@st.composite
def capacities(draw: st.DrawFn) -> KVCapacity:
    """Budgets that end inside a block as well as on its edge."""
    per_block = draw(sizes)
    return KVCapacity(draw(st.integers(0, 50 * per_block)), per_block, draw(st.integers(1, 40)))


@given(capacities(), sizes)
def test_requests_own_whole_blocks_and_one_more_would_not_fit(
    capacity: KVCapacity, length: int
) -> None:
    each, count = capacity.blocks_for(length), capacity.requests(length)
    assert (each - 1) * capacity.block_size < length <= each * capacity.block_size
    assert count * each <= capacity.usable_blocks < (count + 1) * each


@given(capacities())
def test_blocks_fill_the_budget_and_one_is_reserved(capacity: KVCapacity) -> None:
    used = capacity.num_blocks * capacity.bytes_per_block
    assert used <= capacity.budget_bytes < used + capacity.bytes_per_block
    assert capacity.usable_blocks == BlockPool(capacity.num_blocks).num_free
    assert capacity.tokens == capacity.usable_blocks * capacity.block_size


@given(capacities(), st.integers(1, 20), sizes)
def test_the_smallest_budget_is_the_smallest(capacity: KVCapacity, count: int, length: int) -> None:
    needed = capacity.bytes_for(count, length)
    enough = KVCapacity(needed, capacity.bytes_per_block, capacity.block_size)
    short = KVCapacity(needed - 1, capacity.bytes_per_block, capacity.block_size)
    assert enough.requests(length) == count
    assert short.requests(length) == count - 1


@given(capacities())
def test_the_longest_request_fits_and_a_longer_one_does_not(capacity: KVCapacity) -> None:
    if capacity.tokens:
        assert capacity.requests(capacity.tokens) == 1
    assert capacity.requests(capacity.tokens + 1) == 0


@given(st.integers(0, 3), st.integers(2, 12), st.integers(1, 9))
def test_the_store_allocates_exactly_the_blocks_that_fit(
    spare: int, blocks: int, block_size: int
) -> None:
    spec = KVSpec(
        (LayerSpec("a", 2, 3, torch.float32), LayerSpec("b", 1, 5, torch.bfloat16)),
    )
    per_block = (2 * 2 * 3 * 4 + 2 * 1 * 5 * 2) * block_size
    capacity = KVCapacity.of(spec, block_size=block_size, budget_bytes=blocks * per_block + spare)
    assert (capacity.bytes_per_block, capacity.num_blocks) == (per_block, blocks)

    store = PagedKVCacheStore(budget_bytes=capacity.budget_bytes)
    caches = store.allocate(spec, capacity.num_blocks, block_size)
    held = sum(t.numel() * t.element_size() for pair in caches.values() for t in pair)
    assert held == store.allocated_bytes() == blocks * per_block
    with pytest.raises(CapacityError):
        PagedKVCacheStore(budget_bytes=capacity.budget_bytes).allocate(
            spec, capacity.num_blocks + 1, block_size
        )


@pytest.mark.parametrize("sizes", [(-1, 1, 1), (0, 0, 1), (0, 1, 0)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        KVCapacity(*sizes)
