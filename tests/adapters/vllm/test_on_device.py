# SPDX-License-Identifier: Apache-2.0
"""vLLM over programs that sample: same tokens, grammars, neighbours, refusals, traffic."""

import json
import random
import re
import time

import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from tests.adapters.vllm.conftest import (
    count_preemptions,
    generate,
    greedy_reference,
    open_llm,
    worker_of,
)
from tests.adapters.vllm.test_llm import prompt
from tests.adapters.vllm.test_traffic import MAX_LEN, drive, random_requests

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def on_device(structured=False, **sampling):
    neuron_config = {
        "on_device_sampling_config": sampling,
        "enable_structured_outputs": structured,
    }
    return {"additional_config": {"neuron_config": neuron_config}}


DEVICE = on_device()
MASKED = on_device(structured=True)
PROMPTS = [prompt(n, seed=1) for n in (1, 40, 7, 12, 33, 2, 25)]
SEEDED = {"temperature": 1.2, "top_k": 60, "top_p": 0.95, "seed": 3}


@pytest.fixture(scope="module")
def device(tiny):
    # Random weights would write spaces for ever, which JSON allows.
    compact = {"backend": "xgrammar", "disable_any_whitespace": True}
    with open_llm(tiny[0], structured_outputs_config=compact, **MASKED) as engine:
        yield engine


@pytest.mark.compiled
def test_greedy_equals_transformers(device, tiny):
    expected = [greedy_reference(tiny[1], ids, 10) for ids in PROMPTS]
    assert generate(device, PROMPTS, 10) == expected
    assert generate(device, PROMPTS, 10, temperature=1.0, top_k=1) == expected


def test_a_seeded_request_does_not_notice_its_neighbours(device):
    crowded = generate(device, PROMPTS, 10, **SEEDED)
    assert [generate(device, [ids], 10, **SEEDED)[0] for ids in PROMPTS] == crowded
    assert generate(device, PROMPTS, 10, **{**SEEDED, "seed": 4}) != crowded


def test_what_programs_cannot_do_is_sampled_as_on_the_host(device, llm):
    every = [
        {"temperature": 0},
        {"temperature": 0, "repetition_penalty": 1.6},
        {"temperature": 1.0, "min_p": 0.1, "seed": 4},
        {"temperature": 0, "logprobs": 2},
        {"temperature": 0, "logit_bias": {9: 50.0}, "min_tokens": 3},
    ]
    params = [SamplingParams(max_tokens=8, ignore_eos=True, **p) for p in every]
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS[: len(every)]]
    got, expected = (engine.generate(prompts, params, use_tqdm=False) for engine in (device, llm))
    for one, other in zip(got, expected, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
    for one, other in zip(got[3].outputs[0].logprobs, expected[3].outputs[0].logprobs, strict=True):
        assert list(one) == list(other)
        for token, score in one.items():
            assert score.logprob == pytest.approx(other[token].logprob, abs=1e-4)


GRAMMARS = {
    "choice": ({"choice": ["yes", "no"]}, "yes|no"),
    "regex": ({"regex": "[a-f]{3}-[0-9]{2}"}, "[a-f]{3}-[0-9]{2}"),
    "json": (
        {
            "json": {
                "type": "object",
                "properties": {"on": {"type": "boolean"}, "kind": {"enum": ["x", "yy"]}},
                "required": ["on", "kind"],
                "additionalProperties": False,
            }
        },
        '{"on": ?(true|false), ?"kind": ?"(x|yy)"}',
    ),
}


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 2.0, "seed": 1}], ids=str)
def test_grammars_hold_and_free_neighbours_are_untouched(device, sampling):
    free = SamplingParams(max_tokens=12, ignore_eos=True, **sampling)
    ids = [prompt(n, seed=5) for n in (12, 3, 40, 7, 9, 20)]
    alone = [generate(device, [p], 12, **sampling)[0] for p in ids]
    params, patterns = [], []
    for grammar, pattern in GRAMMARS.values():
        constraint = StructuredOutputsParams(**grammar)
        params += [SamplingParams(max_tokens=40, structured_outputs=constraint, **sampling), free]
        patterns += [pattern, None]
    prompts = [{"prompt_token_ids": p} for p in ids]
    for output, pattern, tokens in zip(
        device.generate(prompts, params, use_tqdm=False), patterns, alone, strict=True
    ):
        if pattern is None:
            assert list(output.outputs[0].token_ids) == tokens
        else:
            assert re.fullmatch(pattern, output.outputs[0].text), output.outputs[0].text
            if pattern.startswith("{"):
                json.loads(output.outputs[0].text)


def test_a_grammar_and_a_penalty_go_together(device):
    params = SamplingParams(
        temperature=0,
        max_tokens=8,
        repetition_penalty=1.3,
        structured_outputs=StructuredOutputsParams(choice=["yes", "no"]),
    )
    outputs = device.generate({"prompt_token_ids": prompt(12)}, params, use_tqdm=False)
    assert outputs[0].outputs[0].text in {"yes", "no"}


class Crowd:
    """Tokens of requests alone, on an engine that takes one step after the other."""

    def __init__(self, folder, settings):
        chance = random.Random(json.dumps(settings))
        self.requests = random_requests(chance, 30)
        with open_llm(folder, max_model_len=MAX_LEN, async_scheduling=False, **settings) as engine:
            assert worker_of(engine)._thread is None
            self.alone = [generate(engine, [p], n, **params)[0] for p, n, params in self.requests]


@pytest.mark.parametrize("settings", [{}, MASKED], ids=["host", "device"])
def test_steps_scheduled_ahead_change_no_token(tiny, settings):
    crowd = Crowd(tiny[0], settings)
    chance = random.Random(1)
    limits = {"max_model_len": MAX_LEN, "max_num_batched_tokens": 16, "num_gpu_blocks_override": 18}
    with open_llm(tiny[0], **limits, **settings) as engine:
        worker = worker_of(engine)
        assert worker._thread is not None
        slow_down(worker, chance)
        preemptions = count_preemptions(engine)
        outputs = drive(engine, crowd.requests, chance)
        assert len(outputs) > 15 and preemptions, "the traffic was meant to be rough"
        assert outputs == {i: crowd.alone[i] for i in outputs}
        generate(engine, [prompt(1)], 1)
        assert worker._steps.num_requests <= 1


def slow_down(worker, chance):
    """Let the thread of steps be late by different times."""
    execute = worker._executor.execute

    def late(*args):
        time.sleep(chance.choice([0, 0, 0.002, 0.006]))
        return execute(*args)

    worker._executor.execute = late


@pytest.mark.parametrize("settings", [{}, DEVICE], ids=["host", "device"])
def test_a_step_that_fails_ends_the_engine_with_its_message(tiny, settings):
    with open_llm(tiny[0], **settings) as engine:
        worker, calls = worker_of(engine), []
        execute = worker._executor.execute

        def fail_later(*args):
            calls.append(args)
            if len(calls) == 4:
                raise RuntimeError("the fourth step went wrong")
            return execute(*args)

        worker._executor.execute = fail_later
        with pytest.raises(RuntimeError, match="the fourth step went wrong"):
            generate(engine, [prompt(5)], 20)


def test_without_logits_their_users_are_refused_and_the_rest_is_served(tiny):
    with open_llm(tiny[0], max_logprobs=0, **on_device(temperature=0.5, top_k="7")) as engine:
        expected = [greedy_reference(tiny[1], ids, 6) for ids in PROMPTS]
        assert generate(engine, PROMPTS, 6) == expected
        assert generate(engine, PROMPTS, 6, **SEEDED)
        for name, value in {"min_p": 0.1, "repetition_penalty": 1.2, "logprobs": 0}.items():
            with pytest.raises(VLLMValidationError, match=rf"{name}=.*without --max-logprobs 0"):
                generate(engine, [prompt(4)], **{"temperature": 1.0, name: value})
        with pytest.raises(
            VLLMValidationError, match=r"restart it with .enable_structured_outputs"
        ):
            generate(engine, [prompt(4)], structured_outputs=StructuredOutputsParams(choice=["a"]))
        assert generate(engine, PROMPTS[:1], 6) == expected[:1]
        defaults = engine.get_default_sampling_params()
        assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.5, 7, 1.0)
