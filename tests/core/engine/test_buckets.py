# SPDX-License-Identifier: Apache-2.0
"""Buckets: the chosen one is the smallest that fits, and warm-up knew it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnport.core.config import NeuronConfig
from trnport.core.engine.buckets import Buckets, DecodeSignature, PrefillSignature, choose_bucket
from trnport.core.errors import ConfigError, RequestError


def ascending(limit: int, smallest: int = 1) -> st.SearchStrategy[list[int]]:
    """Bucket lists that end at ``limit``."""
    below = st.sets(st.integers(smallest, limit), max_size=5)
    return below.map(lambda sizes: sorted(sizes | {limit}))


@st.composite
def engines(draw: st.DrawFn) -> tuple[Buckets, int, int, int]:
    """Buckets of a configuration, default or explicit, with the limits they are made for."""
    max_model_len = draw(st.integers(2, 400))
    max_num_seqs = draw(st.integers(1, 20))
    max_tokens = min(draw(st.integers(2, 500)), max_model_len)
    values: dict[str, list[int] | None] = {}
    if draw(st.booleans()):
        values["num_batched_tokens_buckets"] = draw(ascending(max_tokens, 2))
    if draw(st.booleans()):
        values["num_seqs_buckets"] = draw(ascending(max_num_seqs))
    if max_model_len > 2 and draw(st.booleans()):
        values["decode_context_length_buckets"] = draw(
            st.integers(2, max_model_len - 1).flatmap(lambda last: ascending(last, 2))
        )
    config = NeuronConfig.from_dict(
        values,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_tokens,
    )
    buckets = Buckets.from_config(config, max_model_len=max_model_len)
    return buckets, max_model_len, max_num_seqs, max_tokens


@settings(deadline=None)
@given(st.data())
def test_the_choice_is_the_smallest_bucket_that_holds_n(data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, 1000))
    buckets = data.draw(ascending(limit))
    n = data.draw(st.integers(1, limit))
    chosen = choose_bucket(n, buckets)
    assert chosen in buckets
    assert chosen >= n
    assert all(bucket < n for bucket in buckets if bucket < chosen)


@settings(deadline=None)
@given(st.integers(1, 1000).flatmap(ascending), st.integers(1, 1000))
def test_nothing_beyond_the_largest_bucket(buckets: list[int], excess: int) -> None:
    with pytest.raises(RequestError, match=f"exceeds the largest bucket, {buckets[-1]}"):
        choose_bucket(buckets[-1] + excess, buckets)


@pytest.mark.parametrize("n", [0, -1])
def test_nothing_has_no_bucket(n: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        choose_bucket(n, (1, 2))


@settings(deadline=None)
@given(engines())
def test_the_last_buckets_equal_the_limits(engine: tuple[Buckets, int, int, int]) -> None:
    buckets, max_model_len, max_num_seqs, max_tokens = engine
    assert buckets.prefill_tokens[-1] == max_tokens
    assert buckets.decode_seqs[-1] == max_num_seqs
    assert buckets.contexts[-1] == buckets.max_model_len == max_model_len


@settings(deadline=None)
@given(engines(), st.data())
def test_every_chunk_within_the_limits_was_warmed_up(
    engine: tuple[Buckets, int, int, int], data: st.DataObject
) -> None:
    buckets, max_model_len, _, max_tokens = engine
    warmed = set(buckets.all_prefill_signatures())
    n = data.draw(st.integers(1, max_tokens))
    cached = data.draw(st.integers(0, max_model_len - n))
    signature = buckets.prefill_signature(n, cached)
    assert signature in warmed
    assert signature.tokens >= n
    assert signature.prior_context >= cached
    assert (signature.prior_context == 0) == (cached == 0)


@settings(deadline=None)
@given(engines(), st.data())
def test_every_decode_within_the_limits_was_warmed_up(
    engine: tuple[Buckets, int, int, int], data: st.DataObject
) -> None:
    buckets, max_model_len, max_num_seqs, _ = engine
    warmed = set(buckets.all_decode_signatures())
    n = data.draw(st.integers(1, max_num_seqs))
    tokens = data.draw(st.integers(2, max_model_len))
    signature = buckets.decode_signature(n, tokens)
    assert signature in warmed
    assert signature.seqs >= n
    assert signature.context >= tokens


@settings(deadline=None)
@given(engines())
def test_every_program_can_be_reached(engine: tuple[Buckets, int, int, int]) -> None:
    buckets, max_model_len, _, max_tokens = engine
    prefills = buckets.all_prefill_signatures()
    reached = {
        buckets.prefill_signature(n, cached)
        for n in {1, *(b + 1 for b in buckets.prefill_tokens if b < max_tokens)}
        for cached in {0, 1, *(b + 1 for b in buckets.contexts if b < max_model_len)}
        if n + cached <= max_model_len
    }
    assert reached == set(prefills)
    assert len(prefills) == len(set(prefills))
    decodes = buckets.all_decode_signatures()
    assert len(decodes) == len(set(decodes)) == len(buckets.decode_seqs) * len(buckets.contexts)


def test_signatures_of_a_small_engine() -> None:
    buckets = Buckets((4, 8), (1, 3), (6, 9))
    assert buckets.all_prefill_signatures() == [
        PrefillSignature(4, 0),
        PrefillSignature(4, 6),
        PrefillSignature(4, 9),
        PrefillSignature(8, 0),
        PrefillSignature(8, 6),
        # (8, 9) needs at least 5 + 7 tokens
    ]
    assert buckets.all_decode_signatures() == [
        DecodeSignature(1, 6),
        DecodeSignature(1, 9),
        DecodeSignature(3, 6),
        DecodeSignature(3, 9),
    ]
    assert (buckets.prefill(5), buckets.decode(2), buckets.context(7)) == (8, 3, 9)
    assert [buckets.prior_context(n) for n in (0, 1, 6, 7, 9)] == [0, 6, 6, 9, 9]
    with pytest.raises(RequestError, match="9 exceeds the largest bucket, 8"):
        buckets.prefill(9)


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 64))
def test_padding_gives_every_rank_an_equal_share(bucket: int, tp: int) -> None:
    padded = Buckets((bucket,), (1,), (bucket,)).padded_tokens(bucket, tp)
    assert padded % tp == 0
    assert bucket <= padded < bucket + tp


@pytest.mark.parametrize("sizes", [[], [0, 4], [4, 4], [8, 4], [-1]])
def test_refuses_lists_that_are_no_buckets(sizes: list[int]) -> None:
    for position, name in enumerate(("prefill_tokens", "decode_seqs", "contexts")):
        lists = [[1], [1], [1]]
        lists[position] = sizes
        with pytest.raises(ConfigError, match=f"{name}=.*strictly ascending"):
            Buckets(*lists)
