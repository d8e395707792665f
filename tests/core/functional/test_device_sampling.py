# SPDX-License-Identifier: Apache-2.0
"""Sampling from vocabulary shards: against plain loops, theory, and other numbers of ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trnport.adapters.local import LocalWorld, SingleCollectives
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.context import ModelContext, ProgramSampling
from trnport.core.functional.random import gumbel, signed, split, split_rows
from trnport.core.functional.selection import keep_largest, ordered
from trnport.core.metadata import ModelOutput, SamplingInputs
from trnport.core.nn.sampler import Sampler
from trnport.core.parallel import Group, padded_shard_size
from trnport.core.ports import Collectives

RANKS = (1, 2, 3, 4)
WORLDS = {size: LocalWorld(size) for size in RANKS[1:]}


def run(size: int, function):  # type: ignore[no-untyped-def]
    """One result per rank."""
    return [function(SingleCollectives())] if size == 1 else WORLDS[size].run(function)


def finish(
    collectives: Collectives,
    logits: Tensor,
    sampling: SamplingInputs | None,
    mask: Tensor | None = None,
    **options: bool,
) -> ModelOutput:
    """What one rank's sampler makes of its shard of whole logits; the padding holds NaN."""
    vocab = logits.shape[1]
    size, rank = collectives.size("tp"), collectives.rank("tp")
    columns = padded_shard_size(vocab, size)
    padded = torch.nn.functional.pad(logits, (0, size * columns - vocab), value=math.nan)
    shard = padded[:, rank * columns : (rank + 1) * columns]
    context = ModelContext.of(TorchCpuKernels(), collectives, ProgramSampling(**options))
    return Sampler(vocab, columns, context)(shard, sampling, mask)


def draw(logits: Tensor, sampling: SamplingInputs | None, mask=None, size=1) -> list[int]:  # type: ignore[no-untyped-def]
    """Tokens, after making sure that all ranks agree."""
    outputs = run(size, lambda c: finish(c, logits, sampling, mask))
    tokens = [output.token_ids.tolist() for output in outputs]
    assert all(t == tokens[0] for t in tokens)
    result: list[int] = tokens[0]
    return result


def inputs(rows: list[tuple[float, float, float]], keys: list[int] | None = None) -> SamplingInputs:
    keys = list(range(len(rows))) if keys is None else keys
    return SamplingInputs(torch.tensor(rows, dtype=torch.float32), torch.tensor(keys))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- noise ----------------------------------------------------------------------------------------


def test_the_generator_is_splitmix64() -> None:
    # The first outputs for the seed 1234567, as published with the algorithm's many ports.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [split(1234567, i) for i in range(3)] == published


def test_rows_of_noise_are_the_generators_numbers() -> None:
    keys = [0, 1, -1, 2**63 - 1, -(2**63), 1234567]
    rows = split_rows(torch.tensor(keys), torch.arange(5, 40)).tolist()
    assert rows == [[signed(split(key, i)) for i in range(5, 40)] for key in keys]


def test_noise_is_gumbel_distributed() -> None:
    noise = np.sort(gumbel(torch.arange(100), torch.arange(1000)).double().numpy().ravel())
    expected = np.exp(-np.exp(-noise))
    steps = np.arange(noise.size + 1) / noise.size
    distance = max(abs(expected - steps[1:]).max(), abs(expected - steps[:-1]).max())
    assert distance < 1.95 / noise.size**0.5, "Kolmogorov-Smirnov at 0.1 %"
    assert np.unique(noise).size > 0.99 * noise.size


# --- selection ------------------------------------------------------------------------------------

values = st.sampled_from([-math.inf, -3.5, -1.0, -0.0, 0.0, 1e-40, 0.5, 1.0, 1.0000001, 88.0, 3e38])


@settings(max_examples=60)
@given(data=st.data(), vocab=st.integers(1, 40), size=st.sampled_from(RANKS))
def test_exactly_the_k_largest_are_kept_lowest_index_first(data, vocab, size) -> None:  # type: ignore[no-untyped-def]
    row = data.draw(st.lists(values, min_size=vocab, max_size=vocab))
    k = data.draw(st.integers(1, vocab))
    kept = _kept(torch.tensor([row]), torch.ones(1, vocab, dtype=torch.int64), k, size)
    expected = sorted(range(vocab), key=lambda i: (-row[i], i))[:k]
    assert kept == sorted(expected)


@settings(max_examples=60)
@given(data=st.data(), vocab=st.integers(1, 40), size=st.sampled_from(RANKS))
def test_weights_are_collected_until_they_reach_the_target(data, vocab, size) -> None:  # type: ignore[no-untyped-def]
    row = data.draw(st.lists(values, min_size=vocab, max_size=vocab))
    weights = data.draw(st.lists(st.integers(0, 2**40), min_size=vocab, max_size=vocab))
    target = data.draw(st.integers(1, max(1, sum(weights))))
    kept = _kept(torch.tensor([row]), torch.tensor([weights]), target, size)
    expected, mass = [], 0
    for i in sorted(range(vocab), key=lambda i: (-row[i], i)):
        if mass < target:
            expected.append(i)
        mass += weights[i]
    assert kept == sorted(expected)


def _kept(row: Tensor, weights: Tensor, target: int, size: int) -> list[int]:
    columns = padded_shard_size(row.shape[1], size)
    padding = (0, size * columns - row.shape[1])
    row = torch.nn.functional.pad(row, padding, value=-math.inf)
    weights = torch.nn.functional.pad(weights, padding)

    def part(collectives: Collectives) -> Tensor:
        mine = slice(collectives.rank("tp") * columns, (collectives.rank("tp") + 1) * columns)
        keys = ordered(row[:, mine].contiguous())
        group = Group(collectives, "tp")
        return keep_largest(keys, weights[:, mine], torch.tensor([target]), group)

    kept = torch.cat(run(size, part), dim=1)[0, : row.shape[1] - padding[1]]
    return kept.nonzero()[:, 0].tolist()


# --- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_is_the_first_of_the_largest(size: int, dtype: torch.dtype) -> None:
    logits = randn(9, 37).mul(2).round().to(dtype)  # many ties
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert draw(logits, None, size=size) == expected
    assert draw(logits, inputs([(37, 1, 0)] * 9), size=size) == expected
    assert draw(logits, inputs([(1, 1, 0.7)] * 9), size=size) == expected


@pytest.mark.parametrize("size", RANKS)
def test_a_gathered_logit_is_the_models_own(size: int) -> None:
    logits = randn(3, 37)
    for output in run(size, lambda c: finish(c, logits, None)):
        assert torch.equal(output.logits, logits)
    for output in run(size, lambda c: finish(c, logits, None, returns_logits=False)):
        assert output.logits is None


MIXED = [
    (131, 1, 1.0), (131, 1, 0), (5, 1, 0.8), (131, 0.3, 1.0), (50, 0.9, 1.7), (1, 0.5, 1.0),
    (130, 1, 2.0), (131, 1e-6, 1.0), (7, 0.99, 1e-4), (131, 1, 1e-30), (2, 0.5, 100.0),
]  # fmt: skip


@pytest.mark.parametrize("masked", [False, True])
def test_every_number_of_ranks_draws_the_same_tokens(masked: bool) -> None:
    rows = MIXED * 30
    for scale in (0.1, 3, 30):
        logits = (randn(len(rows), 131, seed=3) * scale).bfloat16()
        mask = randn(len(rows), 131, seed=4) > 0.5 if masked else None
        alone = draw(logits, inputs(rows), mask)
        assert len(set(alone)) > 20
        for size in RANKS[1:]:
            assert draw(logits, inputs(rows), mask, size) == alone
        if mask is not None:
            assert all(mask[i, token] for i, token in enumerate(alone))


def test_a_row_notices_neither_its_place_nor_its_neighbours() -> None:
    logits = randn(len(MIXED), 131)
    together = draw(logits, inputs(MIXED))
    for i, row in enumerate(MIXED):
        assert draw(logits[i : i + 1], inputs([row], [i])) == [together[i]]
    poisoned = torch.cat([torch.full((2, 131), math.nan), logits, torch.full((1, 131), -math.nan)])
    rows, keys = [(1, 1, 0.0)] * 2 + MIXED + [(131, 0.5, 1)], [0, 0, *range(len(MIXED)), 0]
    with_padding = draw(poisoned, inputs(rows, keys))
    assert with_padding[2:-1] == together
    assert all(0 <= token < 131 for token in with_padding)


CASES = {
    "plain": (0, 1.0, 1.0),
    "cold": (0, 1.0, 0.4),
    "hot": (0, 1.0, 3.0),
    "top-k": (6, 1.0, 1.0),
    "top-p": (0, 0.7, 1.0),
    "both": (9, 0.8, 1.5),
}


@pytest.mark.parametrize("case", CASES)
def test_draws_follow_the_distribution(case: str) -> None:
    vocab, count = 23, 4_000
    logits = randn(1, vocab, seed=5) * 2
    top_k, top_p, temperature = CASES[case]
    expected = _probabilities(logits[0].double().numpy(), top_k or vocab, top_p, temperature)
    keys = [signed(split(99, i)) for i in range(count)]
    params = inputs([(top_k or vocab, top_p, temperature)] * count, keys)
    counts = np.bincount(draw(logits.expand(count, -1), params), minlength=vocab)
    possible = expected > 0
    assert not counts[~possible].any()
    frequent = expected * count >= 5
    difference = counts[frequent] - expected[frequent] * count
    statistic = (difference**2 / (expected[frequent] * count)).sum()
    degrees = frequent.sum() - 1
    # Wilson and Hilferty's approximation of the 99.9 % point of chi-square.
    limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3
    assert statistic < limit


def _probabilities(logits, top_k, top_p, temperature):  # type: ignore[no-untyped-def]
    """Temperature, then top-k, then top-p, in float64 and in a loop."""
    scaled = np.exp((logits - logits.max()) / temperature)
    order = sorted(range(len(logits)), key=lambda i: -scaled[i])[:top_k]
    total, before, kept = scaled[order].sum(), 0.0, []
    for i in order:
        if before < top_p:
            kept.append(i)
        before += scaled[i] / total
    result = np.zeros(len(logits))
    result[kept] = scaled[kept] / scaled[kept].sum()
    return result


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(1, 60),
    top_p=st.floats(0.01, 0.999),
    temperature=st.floats(0.1, 5),
)
def test_only_tokens_of_the_nucleus_are_drawn_and_all_of_them(seed, top_k, top_p, temperature):  # type: ignore[no-untyped-def]
    logits = (randn(1, 60, seed=seed) * 2).expand(300, -1)
    tokens = set(draw(logits, inputs([(top_k, top_p, temperature)] * 300)))
    expected = _probabilities(logits[0].double().numpy(), top_k, top_p, temperature)
    # Tokens right at the edge of the nucleus may fall on either side in fp32.
    wider = _probabilities(logits[0].double().numpy(), top_k, min(1, top_p + 1e-5), temperature)
    assert tokens <= set(wider.nonzero()[0].tolist())
    assert set((expected > 0.05).nonzero()[0].tolist()) <= tokens


@pytest.mark.parametrize("size", [1, 3])
def test_a_top_p_below_the_resolution_keeps_the_largest(size: int) -> None:
    logits = randn(1, 30).expand(40, -1)
    tokens = draw(logits, inputs([(30, 1e-9, 1.0)] * 40), size=size)
    assert set(tokens) == {int(logits[0].argmax())}


def test_the_best_allowed_token_is_chosen_under_a_mask() -> None:
    logits = randn(2, 37)
    mask = torch.zeros(2, 37, dtype=torch.bool)
    mask[0, [36, 4]] = mask[1, 20] = True
    expected = 36 if logits[0, 36] > logits[0, 4] else 4
    for size in RANKS:
        assert draw(logits, None, mask, size) == [expected, 20]
        assert draw(logits, inputs([(37, 1, 0), (3, 0.5, 1)]), mask, size) == [expected, 20]


@pytest.mark.parametrize("all_greedy", [False, True])
def test_it_traces_into_one_graph(all_greedy: bool) -> None:
    logits, mask = randn(len(MIXED), 131), torch.ones(len(MIXED), 131, dtype=torch.bool)
    params = None if all_greedy else inputs(MIXED)
    context = ModelContext.of(TorchCpuKernels(), SingleCollectives(), ProgramSampling(all_greedy))
    sampler = Sampler(131, 131, context)
    compiled = torch.compile(sampler.__call__, fullgraph=True, backend="eager")
    traced, eager = compiled(logits, params, mask), sampler(logits, params, mask)
    assert torch.equal(traced.token_ids, eager.token_ids)
    assert torch.equal(traced.logits, logits)
