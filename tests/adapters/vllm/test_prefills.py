# SPDX-License-Identifier: Apache-2.0
"""Prompts that arrive together share prefill programs, and get what Transformers gives each."""

import pytest
import torch

pytest.importorskip("vllm")

from vllm import SamplingParams

from tests.adapters.vllm.conftest import (
    generate,
    greedy_reference,
    open_llm,
    scheduler_of,
    worker_of,
)
from tests.adapters.vllm.test_llm import prompt

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SETTINGS = {"max_prefills_per_batch": 3}


@pytest.fixture(scope="module")
def llm(tiny):
    with open_llm(tiny[0], additional_config={"neuron_config": SETTINGS}) as engine:
        yield engine


@pytest.fixture
def packs(llm, monkeypatch):
    """Requests of each prefill program, as they run."""
    programs, seen = worker_of(llm)._executor._programs, []
    run = programs.run

    def counted(step, works):
        if step.name.startswith("prefill"):
            seen.append(len(works))
        return run(step, works)

    monkeypatch.setattr(programs, "run", counted)
    scheduler_of(llm).reset_prefix_cache()
    return seen


def test_a_ragged_batch_equals_each_prompt_alone(llm, tiny, packs):
    prompts = [prompt(n, seed=8) for n in (1, 9, 20, 7, 50, 3, 31)]
    expected = [greedy_reference(tiny[1], ids, 6) for ids in prompts]
    assert generate(llm, prompts, 6) == expected
    assert packs[:2] == [1, 3]  # a step of 32 tokens: 1, 9, 20, and two of the fourth prompt


def test_a_beginning_that_two_new_prompts_share_is_computed_once(llm, tiny, packs):
    first = prompt(17, seed=5)
    second = first[:13] + prompt(6, seed=6)
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in (first, second)],
        SamplingParams(temperature=0, max_tokens=5, ignore_eos=True),
        use_tqdm=False,
    )
    for ids, output in zip((first, second), outputs, strict=True):
        assert list(output.outputs[0].token_ids) == greedy_reference(tiny[1], ids, 5)
    assert (packs, outputs[1].num_cached_tokens) == ([2], 12)


def test_each_gets_the_logprobs_of_its_own_prompt(llm, tiny, packs):
    prompts = [prompt(n, seed=3) for n in (6, 11, 8)]
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in prompts],
        SamplingParams(temperature=0, max_tokens=1, logprobs=0, prompt_logprobs=0),
        use_tqdm=False,
    )
    assert packs == [3]
    for ids, output in zip(prompts, outputs, strict=True):
        with torch.no_grad():
            rows = tiny[1](torch.tensor([ids])).logits[0].log_softmax(-1)
        got = [
            entry[token].logprob
            for token, entry in zip(ids[1:], output.prompt_logprobs[1:], strict=True)
        ]
        want = rows[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        assert got == pytest.approx(want, abs=1e-4)
        (token,) = output.outputs[0].token_ids
        assert output.outputs[0].logprobs[0][token].logprob == pytest.approx(
            rows[-1, token].item(), abs=1e-4
        )
