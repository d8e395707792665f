# SPDX-License-Identifier: Apache-2.0
"""Proposed buckets: the least padding there is, and never more than the default's."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnport.core.config import default_buckets
from trnport.core.engine.advice import Demand, best_buckets, padding, simulate, waste

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), max_size=12)
DEMANDS = st.dictionaries(st.integers(1, 300), st.integers(1, 9), max_size=40)


@given(DEMANDS, st.integers(300, 700), st.sampled_from([1, 16, 128]))
def test_never_worse_than_the_default_with_as_many_programs(
    demand: dict[int, int], limit: int, first: int
) -> None:
    now = default_buckets(first, limit)
    best = best_buckets(demand, len(now), limit=limit, known=now)
    assert len(best) <= len(now)
    assert best[-1] == limit
    assert list(best) == sorted(set(best))
    assert padding(demand, best) <= padding(demand, now)


@given(st.dictionaries(st.integers(1, 14), st.integers(1, 5), max_size=8), st.integers(1, 4))
def test_no_other_list_pads_less(demand: dict[int, int], count: int) -> None:
    limit = 14
    lists = [
        (*chosen, limit)
        for others in range(count)
        for chosen in combinations(range(1, limit), others)
    ]
    least = min(padding(demand, buckets) for buckets in lists)
    assert padding(demand, best_buckets(demand, count, limit=limit)) == least


@given(st.integers(1, 10))
def test_more_buckets_never_pad_more_and_none_is_idle(count: int) -> None:
    demand = {3: 5, 17: 1, 18: 9, 40: 2}
    fewer = best_buckets(demand, count, limit=64)
    more = best_buckets(demand, count + 1, limit=64)
    assert padding(demand, more) <= padding(demand, fewer)
    assert len(more) <= 5


def test_many_sizes_are_thinned_out_and_stay_no_worse() -> None:
    demand = {size: 1 + size % 7 for size in range(1, 2000)}
    now = default_buckets(128, 2000)
    best = best_buckets(demand, len(now), limit=2000, known=now)
    assert padding(demand, best) < padding(demand, now)


def test_buckets_respect_the_smallest() -> None:
    assert best_buckets({1: 9, 2: 1}, 3, limit=8, smallest=2) == (2, 8)


def test_waste_is_padding_over_all_work() -> None:
    assert waste({3: 2}, (4,)) == pytest.approx(2 / 8)
    assert waste({}, (4,)) == 0


@given(LENGTHS, st.integers(1, 5), st.integers(1, 16))
def test_the_simulation_equals_a_plain_one(
    lengths: list[tuple[int, int]], seats: int, chunk: int
) -> None:
    assert simulate(lengths, max_num_seqs=seats, max_prefill_tokens=chunk) == plain(
        lengths, seats, chunk
    )


def plain(lengths: list[tuple[int, int]], seats: int, chunk: int) -> Demand:
    """Token by token."""
    prefill: Counter[int] = Counter()
    seqs: Counter[int] = Counter()
    contexts: Counter[int] = Counter()
    waiting, running = list(lengths), []
    while waiting or running:
        while waiting and len(running) < seats:
            prompt, output = waiting.pop(0)
            left = prompt
            while left:
                prefill[min(left, chunk)] += 1
                left -= min(left, chunk)
            if output > 1:
                running.append([prompt + 1, output - 1])
        if running:
            seqs[len(running)] += 1
            contexts[max(length for length, _ in running)] += len(running)
        running = [[length + 1, left - 1] for length, left in running if left > 1]
    return Demand(prefill, seqs, contexts)


def test_prompts_that_begin_together_share_programs() -> None:
    def runs(prompts: list[int], most: int) -> dict[int, int]:
        limits = {"max_num_seqs": 3, "max_prefill_tokens": 10, "max_prefills": most}
        return dict(simulate([(prompt, 9) for prompt in prompts], **limits).prefill_tokens)

    assert runs([5, 4, 9], 1) == {5: 1, 4: 1, 9: 1}
    assert runs([5, 4, 9], 3) == {9: 2}  # the third does not fit
    assert runs([3, 3, 3], 2) == {6: 1, 3: 1}
    assert runs([12, 3], 2) == {10: 1, 5: 1}  # the rest of a long one
    assert runs([2, 2, 2, 2], 8) == {6: 1, 2: 1}  # the fourth waits for a place
