# SPDX-License-Identifier: Apache-2.0
"""The largest logit, and draws: against torch's own argmax and sums in fp64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from trnport.adapters.vllm.draw import CHUNK, draw, largest

pytestmark = pytest.mark.vllm

INF = float("inf")
VALUES = st.sampled_from([-INF, -3.4e38, -2.5, -1e-40, -0.0, 0.0, 1e-40, 1.0, 2.5, 3.4e38, INF])


@given(
    rows=st.integers(1, 40).flatmap(
        lambda width: st.lists(
            st.lists(VALUES, min_size=width, max_size=width), min_size=1, max_size=4
        )
    ),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_largest_is_the_first_of_the_largest(rows, dtype):
    logits = torch.tensor(rows, dtype=torch.float64).to(dtype)
    expected = [row.index(max(row)) for row in logits.double().tolist()]
    assert largest(logits).tolist() == expected
    assert largest(logits).dtype == torch.int64
    wider = torch.full((len(rows), 50), torch.nan, dtype=dtype)
    wider[:, : logits.shape[1]] = logits
    assert largest(wider[:, : logits.shape[1]]).tolist() == expected, "a view"


@pytest.mark.parametrize("shift", [-50.0, 0.0])
def test_the_largest_of_a_vocabulary(shift):
    logits = torch.randn(7, 49152, generator=torch.Generator().manual_seed(0)) + shift
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(largest(logits.to(dtype)), logits.to(dtype).float().argmax(-1))


@given(
    width=st.sampled_from([1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]),
    rows=st.integers(1, 4),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.0, 1.0, 8.0, 200.0]),
    left_out=st.sampled_from([0.0, 0.5, 0.99]),
)
def test_a_draw_is_where_its_number_lies_among_the_probabilities(
    width, rows, seed, scale, left_out
):
    chance = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, width, generator=chance) * scale
    mask = torch.rand(rows, width, generator=chance) < left_out
    mask[torch.arange(rows), torch.randint(width, (rows,), generator=chance)] = False
    scores.masked_fill_(mask, -INF)
    generators = {row: torch.Generator().manual_seed(seed + row) for row in range(rows)}
    before = scores.clone()
    tokens = draw(scores, generators).tolist()
    assert torch.equal(scores, before)
    ends = scores.double().softmax(-1).cumsum(-1).numpy()
    for row, token in enumerate(tokens):
        again = torch.Generator().manual_seed(seed + row)
        number = torch.rand((), dtype=torch.float64, generator=again).item()
        assert not mask[row, token]
        start = ends[row, token - 1] if token else 0.0
        assert start - 1e-6 <= number <= ends[row, token] + 1e-6


def test_draws_are_as_frequent_as_they_are_probable():
    count, width = 40_000, 300
    scores = torch.randn(width, generator=torch.Generator().manual_seed(1)) * 2
    with torch.random.fork_rng():
        torch.manual_seed(2)
        tokens = draw(scores.expand(count, width), {})
    seen = np.bincount(tokens.numpy(), minlength=width)
    expected = scores.double().softmax(-1).numpy() * count
    often = expected > 5
    statistic = ((seen - expected)[often] ** 2 / expected[often]).sum()
    degrees = often.sum()
    assert abs(statistic - degrees) < 4 * (2 * degrees) ** 0.5, "chi-square, four deviations"


def test_a_generator_decides_its_row_alone_and_the_others_share_torchs():
    scores = torch.randn(3, 500, generator=torch.Generator().manual_seed(3))

    def tokens(seed, rows, order):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            drawn = draw(scores[order], {row: torch.Generator().manual_seed(9) for row in rows})
        return drawn.tolist()

    assert tokens(0, [1], [0, 1, 2])[1] == tokens(5, [0], [1, 2, 0])[0]
    assert tokens(0, [], [0, 1, 2]) == tokens(0, [], [0, 1, 2]) != tokens(1, [], [0, 1, 2])
    with torch.random.fork_rng():
        state = torch.get_rng_state()
        draw(scores, {row: torch.Generator() for row in range(3)})
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("broken", [torch.nan, -INF, INF])
@pytest.mark.parametrize("width", [5, CHUNK, CHUNK + 7])
def test_a_row_without_a_probability_breaks_neither_step_nor_neighbour(broken, width):
    scores = torch.full((2, width), broken)
    scores[1] = -INF
    scores[1, 3] = 0.0
    first, second = draw(scores, {}).tolist()
    assert 0 <= first < width and second == 3


@pytest.mark.parametrize(("number", "expected"), [(0.0, 200), (1 - 2.0**-53, 207)])
def test_the_ends_of_the_numbers_fall_on_tokens_that_are_left(monkeypatch, number, expected):
    numbers = torch.tensor([number], dtype=torch.float64)
    monkeypatch.setattr("trnport.adapters.vllm.draw._uniform", lambda count, generators: numbers)
    scores = torch.full((1, 500), -INF)
    scores[0, 200:208] = torch.linspace(-3, 3, 8)
    assert draw(scores, {}).tolist() == [expected]
