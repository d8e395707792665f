# SPDX-License-Identifier: Apache-2.0
"""Contract of the Kernels port: a chunk with the tokens of several requests."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.contracts.oracles import PagedBatch, assert_close, attend, same_bytes
from tests.contracts.test_kernels_attention import (
    BLOCK_SIZES,
    DIMS,
    HEADS,
    attend_paged,
    chunk,
    maybe_sinks,
    normal,
    pad,
    windows,
)
from trnport.core.ports import Kernels
from trnport.core.ports.kernels import CachedPrefix

counts_of = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any)
dtypes = st.sampled_from([torch.float32, torch.bfloat16])


def starts_of(counts: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32)


def prefix_of(batch: PagedBatch) -> CachedPrefix:
    cached = torch.tensor(batch.lengths, dtype=torch.int32)[:, None]
    return CachedPrefix(batch.k_cache, batch.v_cache, batch.block_table, cached)


@given(
    heads=st.sampled_from(HEADS),
    dim=st.sampled_from(DIMS),
    dtype=dtypes,
    counts=counts_of,
    padding=st.integers(0, 3),
    window=windows,
    with_sinks=st.booleans(),
)
def test_each_request_attends_to_its_own_rows(
    kernels: Kernels, heads, dim, dtype, counts, padding, window, with_sinks
) -> None:
    q, k, v = chunk(sum(counts), heads, dim, dtype)
    options = {
        "scale": dim**-0.5,
        "sliding_window": window,
        "sinks": maybe_sinks(with_sinks, heads[0]),
    }
    padded = [pad(x, padding) for x in (q, k, v)]
    got = kernels.packed_prefill_attention(*padded, starts_of(counts), None, **options)
    for start, count in zip(accumulate([0, *counts]), counts, strict=False):
        own, positions = slice(start, start + count), list(range(count))
        if count:
            want = attend(q[own], k[own], v[own], positions, positions, **options)
            assert_close(got[own], want, dtype)


@given(
    heads=st.sampled_from(HEADS),
    dim=st.sampled_from(DIMS),
    dtype=dtypes,
    requests=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 2, 3, 4, 15, 16, 17])),
        min_size=1,
        max_size=4,
    ).filter(lambda requests: any(count for count, _ in requests)),
    block_size=st.sampled_from(BLOCK_SIZES),
    padding=st.integers(0, 3),
    window=windows,
    with_sinks=st.booleans(),
)
def test_and_to_what_is_cached_of_it(
    kernels: Kernels, heads, dim, dtype, requests, block_size, padding, window, with_sinks
) -> None:
    counts, cached = [n for n, _ in requests], [c if n else 0 for n, c in requests]
    q, k, v = chunk(sum(counts), heads, dim, dtype)
    batch = PagedBatch.random(
        cached, kv_heads=heads[1], head_dim=dim, block_size=block_size, dtype=dtype
    )
    options = {
        "scale": dim**-0.5,
        "sliding_window": window,
        "sinks": maybe_sinks(with_sinks, heads[0]),
    }
    for row, length in enumerate(cached):
        if window is not None:  # what no query sees may be gone
            batch.forget_before(row, max(0, length - window + 1))
    padded = [pad(x, padding) for x in (q, k, v)]
    got = kernels.packed_prefill_attention(*padded, starts_of(counts), prefix_of(batch), **options)
    for row, (start, count) in enumerate(zip(accumulate([0, *counts]), counts, strict=False)):
        own = slice(start, start + count)
        if count:
            want = attend_paged(q[own], k[own], v[own], row, batch, **options)
            assert_close(got[own], want, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prefix_may_be_another_requests_rows(kernels: Kernels, dtype: torch.dtype) -> None:
    """Two requests share a block that the first one computes in this very chunk."""
    q, k, v = chunk(7, (6, 2), 32, dtype)
    caches = [torch.full((4, 2, 4, 32), torch.nan, dtype=dtype) for _ in "kv"]
    # Four shared tokens, then one of the first request and two of the second.
    kernels.kv_write(k, v, *caches, torch.tensor([4, 5, 6, 7, 8, 12, 13]))
    prefix = CachedPrefix(
        *caches,
        torch.tensor([[-1, -1], [1, 3]], dtype=torch.int32),
        torch.tensor([[0], [4]], dtype=torch.int32),
    )
    got = kernels.packed_prefill_attention(q, k, v, starts_of([5, 2]), prefix, scale=0.2)
    second = torch.tensor([0, 1, 2, 3, 5, 6])
    want = attend(q[5:], k[second], v[second], [4, 5], list(range(6)), scale=0.2)
    assert_close(got[5:], want, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neighbours_change_no_bit(kernels: Kernels, dtype: torch.dtype) -> None:
    q, k, v = chunk(9, (4, 4), 64, dtype)
    options = {"scale": 0.1, "sinks": normal(4, seed=3)}
    starts = starts_of([4, 3, 2])
    together = kernels.packed_prefill_attention(q, k, v, starts, None, **options)
    noisy = [x.clone() for x in (q, k, v)]
    for x in noisy:
        x[:4], x[7:] = torch.nan, torch.inf
    alone = kernels.packed_prefill_attention(*noisy, starts, None, **options)
    assert same_bytes(together[4:7], alone[4:7])
