# SPDX-License-Identifier: Apache-2.0
"""vLLM's sampler driven by our rows: each request gets what it would get alone."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput

from trnport.adapters.vllm.output import build_output
from trnport.adapters.vllm.sampled import SampledRequests
from trnport.adapters.vllm.sampling import HostSampler, apply_grammar

pytestmark = pytest.mark.vllm

V = 37


class Bench:
    """A sampler and the requests it knows."""

    def __init__(self, max_num_seqs=8):
        config = SimpleNamespace(
            model_config=SimpleNamespace(
                logprobs_mode="raw_logprobs", use_fp64_gumbel=False, logits_processors=None
            ),
            scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
            speculative_config=None,
        )
        self.sampled = SampledRequests()
        self.sampler = HostSampler(config, self.sampled)

    def add(self, request_id, prompt=(1, 2), outputs=(), **params):
        self.sampled.add(request_id, SamplingParams(**params), list(prompt), list(outputs))

    def draw(self, logits_by_id):
        """One step over some requests; token by request id."""
        ids = list(logits_by_id)
        logits = torch.stack([logits_by_id[i].clone() for i in ids])
        self.output = self.sampler.sample(ids, logits)
        tokens = dict(zip(ids, self.output.sampled_token_ids[:, 0].tolist(), strict=True))
        for request_id, token in tokens.items():
            self.sampled.append(request_id, token)
        return tokens


def logits(seed):
    return torch.randn(V, generator=torch.Generator().manual_seed(seed))


def stream(others, steps=6, **params):
    """Tokens of request "x" over some steps, with other requests around it."""
    bench = Bench()
    bench.add("x", **params)
    tokens = []
    for step in range(steps):
        rows = {"x": logits(step)}
        for name, (first, last, extra) in others.items():
            if step == first:
                bench.add(name, **extra)
            if first <= step <= last:
                rows = {name: logits(100 + step), **rows} if step % 2 else rows | {name: logits(9)}
        tokens.append(bench.draw(rows)["x"])
    return tokens


CROWD = {
    "greedy": (0, 3, {"temperature": 0}),
    "unseeded": (1, 5, {"temperature": 1.3}),
    "seeded": (2, 4, {"temperature": 0.8, "seed": 5}),
    "picky": (0, 5, {"temperature": 1, "top_k": 2, "top_p": 0.3, "min_p": 0.2}),
    "penalised": (1, 2, {"temperature": 0, "repetition_penalty": 2.0, "presence_penalty": 1}),
    "biased": (3, 5, {"temperature": 0, "logit_bias": {3: 50.0}, "logprobs": 4}),
    "patient": (0, 5, {"temperature": 0, "min_tokens": 4, "stop_token_ids": [2, 3]}),
}


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 1, "seed": 11},
        {"temperature": 0.7, "seed": 11, "top_k": 5},
        {"temperature": 0.7, "seed": 11, "top_p": 0.6},
        {"temperature": 2, "seed": 11, "min_p": 0.1},
        {"temperature": 0, "repetition_penalty": 1.7, "frequency_penalty": 0.5},
        {"temperature": 0, "logit_bias": {4: 3.0, 9: -2.0}},
        {"temperature": 0, "min_tokens": 3, "stop_token_ids": [1]},
        {"temperature": 1, "seed": 3, "allowed_token_ids": [4, 5, 6]},
    ],
    ids=str,
)
def test_a_request_does_not_notice_its_neighbours(params):
    assert stream(CROWD, **params) == stream({}, **params)


def test_greedy_takes_the_lowest_index_among_equals():
    bench = Bench()
    bench.add("x", temperature=0)
    row = torch.zeros(V)
    row[[7, 20, 30]] = 5.0
    assert bench.draw({"x": row}) == {"x": 7}


@pytest.mark.parametrize("top_k", [0, -1, V, V + 5])
def test_top_k_off_has_four_spellings(top_k):
    assert stream({}, temperature=1, seed=2, top_k=top_k) == stream({}, temperature=1, seed=2)


def test_top_k_of_one_is_greedy():
    assert stream({}, temperature=1, seed=2, top_k=1) == stream({}, temperature=0)


def test_seeds_differ_and_repeat():
    draws = [stream({}, steps=20, temperature=1, seed=s) for s in (1, 2, 1)]
    assert draws[0] == draws[2] != draws[1]


KINDS = [
    {"temperature": 0},
    {"temperature": 0, "logprobs": 1},
    {"temperature": 0, "min_tokens": 2, "stop_token_ids": [2, 3, 4, 5, 6, 7, 8]},
    {"temperature": 0, "logit_bias": {3: 50.0}},
    {"temperature": 0, "frequency_penalty": 1.0},
    {"temperature": 0, "allowed_token_ids": [4, 5]},
    {"temperature": 0.9, "seed": 5},
    {"temperature": 0.9, "seed": 6, "min_p": 0.2, "top_k": 4},
]


@given(
    steps=st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=3), max_size=8
    ),
    order=st.randoms(use_true_random=False),
)
def test_what_is_kept_of_the_rows_equals_a_rebuild(steps, order):
    """Requests come, go and change places, and ids come back as other requests."""
    kept, rebuilt = Bench(), Bench()
    running = []
    for number, changes in enumerate(steps):
        for name, kind in changes:
            if name in running:
                running.remove(name)
            for bench in (kept, rebuilt):
                bench.sampled.remove(str(name))
                if kind < len(KINDS):
                    bench.add(str(name), **KINDS[kind])
                    params = bench.sampled[str(name)].params
                    params._all_stop_token_ids = set(params.stop_token_ids)
            if kind < len(KINDS):
                running.append(name)
        if number % 3 == 2:
            order.shuffle(running)
        rows = {str(name): logits(10 * number + name) for name in running}
        if not rows:
            continue
        rebuilt.sampler = Bench().sampler
        rebuilt.sampler._sampled = rebuilt.sampled
        for _ in range(2):
            assert kept.draw(rows) == rebuilt.draw(rows)


def test_an_id_may_come_back_as_another_request_in_the_same_rows():
    bench = Bench()
    row = torch.zeros(V)
    row[9], row[4] = 5.0, 3.0
    bench.add("x", temperature=0)
    assert bench.draw({"x": row}) == {"x": 9}
    bench.sampled.remove("x")
    bench.add("x", temperature=0, min_tokens=1, stop_token_ids=[9])
    bench.sampled["x"].params._all_stop_token_ids = {9}
    assert [bench.draw({"x": row})["x"] for _ in range(2)] == [4, 9]


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_repetition_penalty_counts_prompt_and_output_and_pushes_down_on_both_signs(scale):
    bench = Bench()
    bench.add("x", prompt=[3], outputs=[5], temperature=0, repetition_penalty=2.0)
    row = torch.full((V,), scale)
    # Divided when positive, multiplied when negative: either way 3 and 5 fall behind.
    row[3] = row[5] = scale + 0.4
    assert bench.draw({"x": row})["x"] not in {3, 5}


def test_frequency_penalty_counts_outputs_only():
    bench = Bench()
    bench.add("x", prompt=[3, 3, 3], outputs=[5, 5], temperature=0, frequency_penalty=1.0)
    row = torch.zeros(V)
    row[5], row[3] = 1.9, 1.0
    assert bench.draw({"x": row}) == {"x": 3}


def test_min_tokens_holds_stop_tokens_back_until_then():
    bench = Bench()
    bench.add("x", temperature=0, min_tokens=2, stop_token_ids=[9])
    bench.sampled["x"].params._all_stop_token_ids = {9}
    row = torch.zeros(V)
    row[9], row[4] = 5.0, 3.0
    assert [bench.draw({"x": row})["x"] for _ in range(3)] == [4, 4, 9]


def test_logit_bias_can_decide():
    bench = Bench()
    bench.add("x", temperature=0, logit_bias={12: 100.0})
    assert bench.draw({"x": logits(0)}) == {"x": 12}


def test_bad_words_forbid_the_last_token_of_a_sequence():
    bench = Bench()
    bench.add("x", outputs=[4], temperature=0)
    bench.sampled["x"].params._bad_words_token_ids = [[4, 9]]
    row = torch.zeros(V)
    row[9], row[2] = 5.0, 3.0
    assert [bench.draw({"x": row})["x"] for _ in range(2)] == [2, 9]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_logprobs_are_raw_and_include_the_sampled_token(count):
    bench = Bench()
    bench.add("x", temperature=0.3, seed=1, logit_bias={8: 4.0}, logprobs=count)
    bench.add("y", temperature=0)
    rows = {"y": logits(1), "x": logits(0)}
    tokens = bench.draw(rows)
    chosen = [tokens["y"], tokens["x"]]
    output = build_output(["x", "y", "z"], ["y", "x"], chosen, bench.output.logprobs_tensors)
    index = output.req_id_to_index["x"]
    mine = output.logprobs.slice_request(index, 1)
    assert mine.logprob_token_ids.shape == (1, count + 1)
    assert mine.logprob_token_ids[0, 0] == tokens["x"]
    expected = rows["x"].log_softmax(-1)
    np.testing.assert_allclose(mine.logprobs[0, 0], expected[tokens["x"]], rtol=1e-6)
    best = expected.topk(count).indices.tolist()
    assert mine.logprob_token_ids[0, 1:].tolist() == best


def test_all_logprobs():
    bench = Bench()
    bench.add("x", temperature=0, logprobs=-1)
    bench.draw({"x": logits(0)})
    assert bench.output.logprobs_tensors.logprobs.shape == (1, V + 1)


def test_a_request_in_the_middle_of_its_prompt_gets_no_token():
    bench = Bench()
    bench.add("x", temperature=0)
    tokens = bench.draw({"x": logits(0)})
    output = build_output(["chunk", "x"], ["x"], list(tokens.values()))
    assert output.sampled_token_ids[output.req_id_to_index["chunk"]] == []
    assert output.sampled_token_ids[output.req_id_to_index["x"]] == [tokens["x"]]
    assert set(output.req_id_to_index) == {"chunk", "x"}


def test_nothing_sampled():
    output = build_output(["a", "b"])
    assert output.sampled_token_ids == [[], []] and output.logprobs is None


def bitmask(allowed):
    words = np.zeros((1, -(-V // 32)), dtype=np.int32)
    for token in allowed:
        words[0, token // 32] |= np.int32(1) << np.int32(token % 32)
    return words


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grammar_masks_follow_their_request_and_leave_others_alone(dtype):
    rows = torch.stack([logits(i) for i in range(3)]).to(dtype)
    before = rows.clone()
    # The scheduler's order is not the order of our rows; "late" is not sampled in this step.
    masks = np.concatenate([bitmask([1]), bitmask([36, 4]), bitmask([7])])
    grammar = GrammarOutput(["late", "b", "a"], masks)
    apply_grammar(SchedulerOutput.make_empty(), grammar, ["a", "free", "b"], rows)
    assert rows[0].isfinite().nonzero().flatten().tolist() == [7]
    assert rows[2].isfinite().nonzero().flatten().tolist() == [4, 36]
    assert torch.equal(rows[1], before[1])


def test_no_grammar_changes_nothing():
    rows = torch.stack([logits(0)])
    apply_grammar(SchedulerOutput.make_empty(), None, ["a"], rows)
    assert torch.equal(rows[0], logits(0))
