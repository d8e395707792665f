# SPDX-License-Identifier: Apache-2.0
"""Contract of the Kernels port: the three attention operators."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from tests.contracts.oracles import PagedBatch, assert_close, attend
from trnport.core.ports import Kernels

DTYPES = [torch.float32, torch.bfloat16]
HEADS = [(6, 2), (9, 3), (4, 4), (5, 1)]
DIMS = [5, 10, 64]
BLOCK_SIZES = [1, 3, 16]
WINDOW = 4


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def chunk(
    tokens: int, heads: tuple[int, int], dim: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (heads[0], heads[1], heads[1])
    q, k, v = (normal(tokens, n, dim, dtype=dtype, seed=i) for i, n in enumerate(sizes))
    return q, k, v


def pad(x: Tensor, rows: int, value: float = torch.nan) -> Tensor:
    return torch.cat([x, torch.full((rows, *x.shape[1:]), value, dtype=x.dtype)])


def validity(tokens: int, padding: int) -> Tensor:
    return torch.arange(tokens + padding) < tokens


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, int], int, torch.dtype]:
    return (
        draw(st.sampled_from(HEADS)),
        draw(st.sampled_from(DIMS)),
        draw(st.sampled_from(DTYPES)),
    )


windows = st.sampled_from([None, 1, 3, WINDOW, 100])
sink_choice = st.booleans()


def maybe_sinks(wanted: bool, heads: int) -> Tensor | None:
    return normal(heads, seed=9) * 2 if wanted else None


# --- first chunk ------------------------------------------------------------------------------


@given(
    shape=shapes(),
    tokens=st.integers(1, 9),
    padding=st.integers(0, 3),
    window=windows,
    with_sinks=sink_choice,
)
def test_prefill_equals_the_oracle(
    kernels: Kernels, shape, tokens: int, padding: int, window: int | None, with_sinks: bool
) -> None:
    heads, dim, dtype = shape
    q, k, v = chunk(tokens, heads, dim, dtype)
    options = {"scale": dim**-0.5, "sinks": maybe_sinks(with_sinks, heads[0])}
    padded = [pad(x, padding) for x in (q, k, v)]
    got = kernels.prefill_attention(
        *padded, validity(tokens, padding), sliding_window=window, **options
    )
    positions = list(range(tokens))
    want = attend(q, k, v, positions, positions, sliding_window=window, **options)
    assert_close(got[:tokens], want, dtype)


@pytest.mark.parametrize("tokens", [WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW])
def test_window_counts_the_query_itself(kernels: Kernels, tokens: int) -> None:
    """With equal scores the output is the mean over exactly the keys that are seen."""
    q = torch.zeros(tokens, 1, 1)
    v = torch.arange(1.0, tokens + 1).view(-1, 1, 1)
    got = kernels.prefill_attention(q, q, v, validity(tokens, 0), scale=1.0, sliding_window=WINDOW)
    seen = [range(max(0, t - WINDOW + 1), t + 1) for t in range(tokens)]
    want = [sum(i + 1 for i in r) / len(r) for r in seen]
    assert_close(got.flatten(), torch.tensor(want))


def test_each_query_head_reads_its_own_kv_head(kernels: Kernels) -> None:
    q = normal(3, 6, 4)
    v = torch.tensor([10.0, 20.0]).view(1, 2, 1).expand(3, 2, 4).contiguous()
    got = kernels.prefill_attention(q, normal(3, 2, 4, seed=1), v, validity(3, 0), scale=1.0)
    want = torch.tensor([10.0] * 3 + [20.0] * 3).view(1, 6, 1).expand(3, 6, 4)
    assert_close(got, want)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_prefill_padding_is_inert_bit_by_bit(
    kernels: Kernels, with_sinks: bool, window: int | None
) -> None:
    q, k, v = chunk(5, (6, 2), 10)
    outputs = [
        kernels.prefill_attention(
            *(pad(x, 3, value) for x in (q, k, v)),
            validity(5, 3),
            scale=0.3,
            sliding_window=window,
            sinks=maybe_sinks(with_sinks, 6),
        )[:5]
        for value in (0.0, torch.nan, torch.inf, 1e30)
    ]
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])


def test_invalid_rows_are_unseen_wherever_they_stand(kernels: Kernels) -> None:
    q, k, v = chunk(5, (2, 1), 4)
    k[1], v[1], q[1] = torch.nan, torch.nan, torch.nan
    valid = torch.tensor([True, False, True, True, True])
    got = kernels.prefill_attention(q, k, v, valid, scale=0.5)
    kept = [0, 2, 3, 4]
    assert_close(got[kept], attend(q[kept], k[kept], v[kept], kept, kept, 0.5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_is_fp32_and_survives_huge_scores(kernels: Kernels, dtype: torch.dtype) -> None:
    """Scores to 40 and more: rounded to bf16 they would be off by an eighth and more."""
    q, k, v = chunk(12, (4, 2), 64, dtype)
    q = q * 6
    valid, positions = validity(12, 0), list(range(12))
    got = kernels.prefill_attention(q, k, v, valid, scale=0.125)
    assert_close(got, attend(q, k, v, positions, positions, 0.125), dtype)
    extreme = kernels.prefill_attention(q * 1e3, k, v, valid, scale=1.0)
    assert_close(extreme, attend(q * 1e3, k, v, positions, positions, 1.0), dtype)


@pytest.mark.parametrize("sink", [-30.0, 0.0, 3.0, 60.0])
def test_sink_joins_the_denominator_only(kernels: Kernels, sink: float) -> None:
    q = torch.zeros(2, 1, 3)
    v = torch.full((2, 1, 3), 5.0)
    got = kernels.prefill_attention(q, q, v, validity(2, 0), scale=0.1, sinks=torch.tensor([sink]))
    weight = torch.tensor([n / (n + torch.tensor(sink).double().exp()) for n in (1, 2)])
    assert_close(got, (5 * weight).view(2, 1, 1).expand(2, 1, 3))


def test_sink_is_not_rounded_to_bf16(kernels: Kernels) -> None:
    """Score and sink, 60.2 and 60, are one number when divided by the scale in bf16."""
    one = torch.ones(1, 1, 1, dtype=torch.bfloat16)
    options = {"scale": 0.0917, "sinks": torch.tensor([60.0], dtype=torch.bfloat16)}
    got = kernels.prefill_attention(one, one * 656, one, validity(1, 0), **options)
    assert_close(got, attend(one, one * 656, one, [0], [0], **options))


def test_sink_of_minus_infinity_is_no_sink(kernels: Kernels) -> None:
    q, k, v = chunk(5, (6, 2), 10)
    sinks = torch.full((6,), -torch.inf)
    got = kernels.prefill_attention(q, k, v, validity(5, 0), scale=0.3, sinks=sinks)
    assert_close(got, kernels.prefill_attention(q, k, v, validity(5, 0), scale=0.3))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_with_sinks_equals_transformers(
    kernels: Kernels, dtype: torch.dtype, window: int | None
) -> None:
    q, k, v = chunk(9, (6, 2), 10, dtype)
    sinks = normal(6, dtype=dtype, seed=5)
    order = torch.arange(9)
    distance = order[:, None] - order
    seen = (distance >= 0) & (distance < (window or 99))
    bias = torch.where(seen, 0.0, -torch.inf)[None, None].double()
    module = SimpleNamespace(
        num_key_value_groups=3, sinks=sinks.double(), training=False, sliding_window=window
    )
    heads_first = (x.transpose(0, 1)[None].double() for x in (q, k, v))
    want, _ = eager_attention_forward(module, *heads_first, bias, scaling=0.3)
    got = kernels.prefill_attention(
        q, k, v, validity(9, 0), scale=0.3, sliding_window=window, sinks=sinks
    )
    assert_close(got, want[0], dtype)


# --- later chunk ------------------------------------------------------------------------------


def attend_paged(q: Tensor, k: Tensor, v: Tensor, row: int, batch: PagedBatch, **options) -> Tensor:
    """The oracle over a row's cache, then the chunk's own keys."""
    cached = batch.lengths[row]
    keys, values = torch.cat([batch.keys[row], k]), torch.cat([batch.values[row], v])
    positions = list(range(cached + len(k)))
    return attend(q, keys, values, positions[cached:], positions, **options)


@given(
    shape=shapes(),
    block_size=st.sampled_from(BLOCK_SIZES),
    cached=st.sampled_from([0, 1, 2, 3, 4, 15, 16, 17]),
    tokens=st.integers(1, 5),
    padding=st.integers(0, 3),
    window=windows,
    with_sinks=sink_choice,
)
def test_prefill_with_prior_equals_the_oracle(
    kernels: Kernels, shape, block_size, cached, tokens, padding, window, with_sinks
) -> None:
    heads, dim, dtype = shape
    q, k, v = chunk(tokens, heads, dim, dtype)
    batch = PagedBatch.random(
        [cached], kv_heads=heads[1], head_dim=dim, block_size=block_size, dtype=dtype
    )
    options = {"scale": dim**-0.5, "sinks": maybe_sinks(with_sinks, heads[0])}
    if window is not None:  # what no query sees may be gone
        batch.forget_before(0, max(0, cached - window + 1))
    got = kernels.prefill_attention_with_prior(
        *(pad(x, padding) for x in (q, k, v)),
        validity(tokens, padding),
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        torch.tensor([[cached]], dtype=torch.int32),
        sliding_window=window,
        **options,
    )
    want = attend_paged(q, k, v, 0, batch, sliding_window=window, **options)
    assert_close(got[:tokens], want, dtype)


@pytest.mark.parametrize("window", [None, 1, WINDOW])
@pytest.mark.parametrize("cached", [0, 1, 2, 3, 4, 6, 7])
def test_any_split_of_a_prompt_gives_the_same_rows(
    kernels: Kernels, cached: int, window: int | None
) -> None:
    """Prefill whole, in two chunks, or the last token by decode."""
    total = 8
    q, k, v = chunk(total, (6, 2), 10)
    options = {"scale": 0.3, "sliding_window": window, "sinks": normal(6, seed=4)}
    whole = kernels.prefill_attention(q, k, v, validity(total, 0), **options)
    caches = [torch.full((5, 2, 3, 10), torch.nan) for _ in "kv"]
    table = torch.tensor([[4, 2, 3, -1]], dtype=torch.int32)
    slots = torch.tensor([int(table[0, p // 3]) * 3 + p % 3 for p in range(total)])
    if cached:
        kernels.kv_write(k[:cached], v[:cached], *caches, slots[:cached])
    later = kernels.prefill_attention_with_prior(
        q[cached:],
        k[cached:],
        v[cached:],
        validity(total - cached, 0),
        *caches,
        table,
        torch.tensor([[cached]], dtype=torch.int32),
        **options,
    )
    assert_close(later, whole[cached:])
    kernels.kv_write(k[cached:], v[cached:], *caches, slots[cached:])
    last = torch.tensor([total - 1], dtype=torch.int32)
    decoded = kernels.decode_attention(q[-1:], *caches, table, last, **options)
    assert_close(decoded, whole[-1:])


# --- decode -----------------------------------------------------------------------------------


@given(
    shape=shapes(),
    block_size=st.sampled_from(BLOCK_SIZES),
    lengths=st.lists(st.sampled_from([1, 2, 3, 4, 5, 15, 16, 17]), min_size=1, max_size=4),
    window=windows,
    with_sinks=sink_choice,
)
def test_decode_equals_the_oracle(
    kernels: Kernels, shape, block_size, lengths, window, with_sinks
) -> None:
    heads, dim, dtype = shape
    batch = PagedBatch.random(
        lengths, kv_heads=heads[1], head_dim=dim, block_size=block_size, dtype=dtype
    )
    q = normal(len(lengths), heads[0], dim, dtype=dtype)
    options = {"scale": dim**-0.5, "sinks": maybe_sinks(with_sinks, heads[0])}
    if window is not None:
        for row, length in enumerate(lengths):
            batch.forget_before(row, max(0, length - window))
    got = decode(kernels, q, batch, sliding_window=window, **options)
    for row, length in enumerate(lengths):
        want = attend(
            q[row : row + 1],
            batch.keys[row],
            batch.values[row],
            [length - 1],
            list(range(length)),
            sliding_window=window,
            **options,
        )
        assert_close(got[row : row + 1], want, dtype)


def decode(kernels: Kernels, q: Tensor, batch: PagedBatch, **options) -> Tensor:
    positions = torch.tensor(batch.lengths, dtype=torch.int32) - 1
    return kernels.decode_attention(
        q, batch.k_cache, batch.v_cache, batch.block_table, positions, **options
    )


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_rows_are_independent(
    kernels: Kernels, dtype: torch.dtype, with_sinks: bool
) -> None:
    """A row alone, among others, with padding rows and with a wider table."""
    batch = PagedBatch.random([7, 1, 4], kv_heads=2, head_dim=10, block_size=3, dtype=dtype)
    q = normal(3, 6, 10, dtype=dtype)
    options = {"scale": 0.3, "sinks": maybe_sinks(with_sinks, 6)}
    together = decode(kernels, q, batch, **options)
    positions = torch.tensor(batch.lengths, dtype=torch.int32) - 1
    caches = (batch.k_cache, batch.v_cache)
    for row in range(3):
        one = slice(row, row + 1)
        alone = kernels.decode_attention(
            q[one], *caches, batch.block_table[one], positions[one], **options
        )
        assert_close(alone, together[one])
    wide = torch.full((5, 9), -1, dtype=torch.int32)
    wide[:3, : batch.block_table.shape[1]] = batch.block_table
    padded = kernels.decode_attention(
        pad(q, 2), *caches, wide, torch.cat([positions, positions.new_zeros(2)]), **options
    )
    assert_close(padded[:3], together)
    assert padded[3:].isfinite().all()


def test_decode_of_padding_only_is_finite(kernels: Kernels) -> None:
    caches = [torch.full((2, 1, 3, 4), torch.nan) for _ in "kv"]
    got = kernels.decode_attention(
        torch.full((2, 2, 4), torch.nan),
        *caches,
        torch.full((2, 3), -1, dtype=torch.int32),
        torch.zeros(2, dtype=torch.int32),
        scale=1.0,
        sliding_window=2,
    )
    assert got.isfinite().all()


def test_decode_reads_a_cache_of_another_dtype(kernels: Kernels) -> None:
    batch = PagedBatch.random([4], kv_heads=2, head_dim=10, block_size=3, dtype=torch.bfloat16)
    q = normal(1, 6, 10)
    want = attend(q, batch.keys[0], batch.values[0], [3], [0, 1, 2, 3], 0.3)
    assert_close(decode(kernels, q, batch, scale=0.3), want, torch.float32)


def test_reading_leaves_the_cache_alone(kernels: Kernels) -> None:
    batch = PagedBatch.random([4], kv_heads=2, head_dim=5, block_size=3)
    q, k, v = chunk(2, (2, 2), 5)
    before = [x.clone() for x in (batch.k_cache, batch.v_cache, q, k, v)]
    decode(kernels, q[:1], batch, scale=0.3)
    kernels.prefill_attention_with_prior(
        q,
        k,
        v,
        validity(1, 1),
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        torch.tensor([[4]], dtype=torch.int32),
        scale=0.3,
    )
    after = (batch.k_cache, batch.v_cache, q, k, v)
    for x, y in itertools.zip_longest(before, after):
        assert torch.equal(x.view(torch.int32), y.view(torch.int32))
