# SPDX-License-Identifier: Apache-2.0
"""Sampling against Transformers' warpers, and its independence of batch mates."""

from __future__ import annotations

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TopKLogitsWarper, TopPLogitsWarper

from trnport.core.engine.sampling import Sampler, SamplingParams, apply_top_k_top_p
from trnport.core.errors import RequestError

V = 131


@attrs.frozen
class Row:
    request_id: str
    sampling: SamplingParams


def logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 3


@given(seed=st.integers(0, 1000), k=st.integers(1, V - 1))
def test_top_k_keeps_what_transformers_keeps(seed: int, k: int) -> None:
    scores = logits(seed)
    expected = TopKLogitsWarper(k)(None, scores)[0]
    assert torch.equal(apply_top_k_top_p(scores[0], k, 1.0), expected)


@given(seed=st.integers(0, 1000), p=st.floats(0.01, 0.99))
def test_top_p_keeps_what_transformers_keeps(seed: int, p: float) -> None:
    scores = logits(seed)
    expected = TopPLogitsWarper(p)(None, scores)[0]
    assert torch.equal(apply_top_k_top_p(scores[0], 0, p), expected)


@pytest.mark.parametrize("k", [-1, 0, V, V + 5])
def test_top_k_of_nothing_or_everything_is_off(k: int) -> None:
    scores = logits(0)[0]
    assert torch.equal(apply_top_k_top_p(scores, k, 1.0), scores)


def test_top_k_keeps_exactly_k_of_equal_scores_lowest_index_first() -> None:
    kept = apply_top_k_top_p(torch.zeros(10), 3, 1.0).isfinite().nonzero().flatten()
    assert kept.tolist() == [0, 1, 2]


def test_a_tiny_top_p_still_keeps_the_best() -> None:
    scores = logits(3)[0]
    kept = apply_top_k_top_p(scores, 0, 1e-9).isfinite().nonzero().flatten()
    assert kept.tolist() == [int(scores.argmax())]


def test_temperature_zero_is_greedy_with_the_lowest_index_among_equals() -> None:
    row = torch.tensor([[0.0, 5.0, 5.0, 1.0]])
    assert Sampler().sample(row, [Row("a", SamplingParams(temperature=0))]) == [1]


def test_greedy_and_random_rows_mix_in_one_batch() -> None:
    rows = logits(1, rows=3)
    requests = [Row("a", SamplingParams(temperature=0)), Row("b", SamplingParams(seed=1)),
                Row("c", SamplingParams(temperature=0))]  # fmt: skip
    tokens = Sampler().sample(rows, requests)
    assert tokens[0] == int(rows[0].argmax())
    assert tokens[2] == int(rows[2].argmax())


def draw(order: list[str], steps: int, seeds: dict[str, int | None]) -> dict[str, list[int]]:
    """Each request's tokens when the batch has this order."""
    sampler = Sampler()
    rows = {name: logits(ord(name)) for name in seeds}
    out: dict[str, list[int]] = {name: [] for name in order}
    for _ in range(steps):
        requests = [Row(name, SamplingParams(seed=seeds[name])) for name in order]
        tokens = sampler.sample(torch.cat([rows[name] for name in order]), requests)
        for name, token in zip(order, tokens, strict=True):
            out[name].append(token)
    return out


def test_a_seeded_stream_ignores_slot_and_neighbours() -> None:
    seeds = {"a": 7, "b": None, "c": 9}
    alone = draw(["a"], 20, seeds)["a"]
    assert draw(["c", "b", "a"], 20, seeds)["a"] == alone
    assert draw(["a", "b"], 20, seeds)["a"] == alone
    assert len(set(alone)) > 1


def test_another_seed_is_another_stream_and_forgetting_restarts_it() -> None:
    sampler = Sampler()
    row, one, two = logits(5), Row("a", SamplingParams(seed=1)), Row("b", SamplingParams(seed=2))
    first = [sampler.sample(row, [one])[0] for _ in range(20)]
    assert [sampler.sample(row, [two])[0] for _ in range(20)] != first
    sampler.forget("a")
    assert [sampler.sample(row, [one])[0] for _ in range(20)] == first


def test_frequencies_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    sampler, request = Sampler(), Row("a", SamplingParams(seed=0))
    draws = [sampler.sample(probabilities.log()[None], [request])[0] for _ in range(4000)]
    counts = torch.bincount(torch.tensor(draws), minlength=4).float()
    chi_square = ((counts - 4000 * probabilities) ** 2 / (4000 * probabilities)).sum()
    assert chi_square < 16.3  # 0.1 % point of chi-square with 3 degrees of freedom


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", -0.1), ("temperature", float("nan")), ("top_k", -2),
                         ("top_p", 0.0), ("top_p", 1.5)],
)  # fmt: skip
def test_a_bad_parameter_is_named(field: str, value: float) -> None:
    with pytest.raises(RequestError, match=f"{field}={value}"):
        SamplingParams(**{field: value})
