# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of prompts, against Transformers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from tests.adapters.vllm.conftest import count_preemptions, generate, open_llm, scheduler_of
from tests.adapters.vllm.test_llm import prompt
from trnport.adapters.vllm.prompt_logprobs import PromptLogprobs
from trnport.core.engine.batch import BatchState, Request
from trnport.core.engine.hidden import HiddenRows

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

V = 11


def score(engine, prompts, count=1, **params):
    """The request outputs of prompts of token ids."""
    params = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": count, **params}
    prompts = [{"prompt_token_ids": ids} for ids in prompts]
    return engine.generate(prompts, SamplingParams(**params), use_tqdm=False)


def reference(model, ids):
    """``[n - 1, V]``: row i says how likely each token is at position i + 1."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)


def check(found, model, ids, count):
    """Own token and most likely ones, with log-probability and rank."""
    assert found[0] is None and len(found) == len(ids)
    for row, token, entries in zip(reference(model, ids), ids[1:], found[1:], strict=True):
        own = entries[token]
        assert own.logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert own.rank == 1 + int((row > row[token]).sum())
        top = row.topk(count)
        for rank, (value, likely) in enumerate(zip(*top, strict=True), 1):
            assert entries[int(likely)].logprob == pytest.approx(float(value), abs=1e-4)
            assert entries[int(likely)].rank == rank
        assert set(entries) == {token, *top.indices.tolist()}


@pytest.mark.compiled
@pytest.mark.parametrize("count", [0, 1, 4])
def test_equal_those_of_transformers_over_any_chunks(llm, tiny, count):
    # Chunks of at most 32: one, several, and one of a single token in front of the last token.
    prompts = [prompt(n, seed=3) for n in (1, 2, 7, 32, 33, 34, 63)]
    for ids, output in zip(prompts, score(llm, prompts, count), strict=True):
        check(output.prompt_logprobs, tiny[1], ids, count)


def test_a_prefix_in_the_cache_is_computed_again(llm, tiny):
    ids = prompt(40, seed=4)
    tokens = generate(llm, [ids], 1)[0]
    (output,) = score(llm, [ids], 2)
    assert output.num_cached_tokens == 0
    check(output.prompt_logprobs, tiny[1], ids, 2)
    assert list(output.outputs[0].token_ids) == tokens


def test_only_those_who_ask_and_several_samples(llm, tiny):
    ids = prompt(9, seed=5)
    asks = SamplingParams(n=3, seed=1, temperature=1, max_tokens=3, prompt_logprobs=1)
    silent = SamplingParams(temperature=0, max_tokens=3)
    outputs = llm.generate([{"prompt_token_ids": ids}] * 2, [asks, silent], use_tqdm=False)
    check(outputs[0].prompt_logprobs, tiny[1], ids, 1)
    assert outputs[1].prompt_logprobs is None


def test_limits_are_vllms(llm):
    with pytest.raises(VLLMValidationError, match="prompt logprobs of 21"):
        score(llm, [prompt(4)], 21)
    with pytest.raises(VLLMValidationError, match="prompt logprobs of 131"):
        score(llm, [prompt(4)], -1)


def test_a_prefix_cannot_be_left_out(llm):
    with pytest.raises(VLLMValidationError, match="skip_reading_prefix_cache"):
        score(llm, [prompt(4)], 1, skip_reading_prefix_cache=False)


def test_preemption_and_every_token(tiny):
    # Two requests of 34 + 30 tokens and 23 usable blocks of 4. A budget of 7 tokens lets a
    # chunk of one prompt be the rest that another one leaves over.
    prompts = [prompt(34, seed=6), prompt(35, seed=7), prompt(6, seed=8)]
    with open_llm(
        tiny[0], max_num_batched_tokens=7, num_gpu_blocks_override=24, max_logprobs=-1
    ) as engine:
        preempted = count_preemptions(engine)
        outputs = score(engine, prompts, -1, max_tokens=28, ignore_eos=True)
        assert preempted, "the cache was meant to be too small"
        for ids, output in zip(prompts, outputs, strict=True):
            check(output.prompt_logprobs, tiny[1], ids, 131)
            assert len(output.outputs[0].token_ids) == 28
        assert not scheduler_of(engine).requests


def test_off_means_refused_by_name_and_no_program(tiny):
    off = {"neuron_config": {"enable_prompt_logprobs": False}}
    with open_llm(tiny[0], additional_config=off) as engine:
        with pytest.raises(VLLMValidationError, match=r"prompt_logprobs.*enable_prompt_logprobs"):
            score(engine, [prompt(4)])
        executor = engine.llm_engine.engine_core.engine_core.model_executor
        names = executor.driver_worker.worker._executor.program_names
        assert names and not [name for name in names if name.startswith("lm_head")]


@given(st.data())
def test_a_prompt_that_starts_over_is_reported_once_and_whole(data):
    # What vLLM does with a request preempted in the middle of its prompt.
    n, count = data.draw(st.integers(1, 9)), data.draw(st.integers(0, V))
    logits = torch.randn(n, V, generator=torch.Generator().manual_seed(n))
    scores, batch = PromptLogprobs(lambda hidden: hidden, "raw_logprobs"), BatchState()
    request = Request("r", [(3 * i) % V for i in range(n)], n)
    batch.add(request)

    def computes(tokens):
        start = request.num_computed_tokens
        stop = min(start + tokens, n)
        request.num_computed_tokens = stop
        hidden = {"r": HiddenRows(start, logits[start:stop])} if start < n - 1 else {}
        return scores.step(batch, hidden, {"r": count})

    for _ in range(data.draw(st.integers(0, 3))):
        assert not computes(data.draw(st.integers(1, max(1, n - 1)))) or n == 1
        request.num_computed_tokens = 0
    if n == 1:
        return
    done = {}
    while not done:
        done = computes(data.draw(st.integers(1, n)))
    assert request.num_computed_tokens == n
    rows = logits[:-1].log_softmax(-1)
    ids, values, ranks = done["r"][:3]
    assert ids.shape == values.shape == (n - 1, 1 + count)
    assert ids[:, 0].tolist() == request.token_ids[1:]
    assert torch.allclose(values, rows.gather(-1, ids.long()))
    for rank, row, token in zip(ranks.tolist(), rows, request.token_ids[1:], strict=True):
        assert row.argsort(descending=True)[rank - 1] == token
    request.num_computed_tokens = 0  # preempted again, now while it generates
    request.token_ids.append(5)
    assert not computes(n + 1)
