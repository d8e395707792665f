# SPDX-License-Identifier: Apache-2.0
"""LLM.generate and LLM.chat on a tiny random model, against Transformers."""

import pytest
import torch

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from tests.adapters.vllm.conftest import (
    count_preemptions,
    generate,
    greedy_reference,
    open_llm,
    scheduler_of,
    worker_of,
)
from tests.zoo import save_llama

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def prompt(length, seed=0):
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return torch.randint(3, 131, (length,), generator=generator).tolist()


@pytest.mark.compiled
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 17, 31, 32, 33, 50])
def test_greedy_equals_transformers(llm, tiny, length):
    # 33 and 50 are over the step budget of 32: the prompt is computed in chunks.
    ids = prompt(length)
    assert generate(llm, [ids], 12) == [greedy_reference(tiny[1], ids, 12)]


@pytest.mark.compiled
def test_a_ragged_batch_equals_each_prompt_alone(llm, tiny):
    prompts = [prompt(n, seed=1) for n in (1, 40, 7, 12, 33, 2, 25)]
    expected = [greedy_reference(tiny[1], ids, 10) for ids in prompts]
    assert generate(llm, prompts, 10) == expected


def test_up_to_the_last_position(llm, tiny):
    ids = prompt(60)
    assert generate(llm, [ids], 4) == [greedy_reference(tiny[1], ids, 4)]


HITS = [(32, n) for n in (0, 3, 4, 5, 8, 12, 30, 31, 32)]
"""Lengths of a prompt and of its known beginning: around blocks of 4 and a step of 32 tokens."""
HITS += [(50, n) for n in (1, 4, 15, 16, 17, 19, 20, 31, 32, 33, 36, 47, 48, 49, 50)]


@pytest.mark.compiled
@pytest.mark.parametrize(("length", "shared"), HITS)
def test_a_prefix_hit_equals_a_miss(llm, tiny, length, shared):
    scheduler = scheduler_of(llm)
    scheduler.reset_prefix_cache()
    first = prompt(length, seed=shared)
    second = first[:shared] + prompt(length - shared, seed=99)
    generate(llm, [first], 4)
    outputs = llm.generate(
        {"prompt_token_ids": second},
        SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
        use_tqdm=False,
    )
    assert list(outputs[0].outputs[0].token_ids) == greedy_reference(tiny[1], second, 6)
    # Whole blocks of 4 are shared; of a prompt known in full, the last token is computed again.
    assert outputs[0].num_cached_tokens == min(shared // 4 * 4, (length - 1) // 4 * 4)


def test_blocks_and_requests_are_all_given_back(llm):
    generate(llm, [prompt(n) for n in (5, 40, 9)], 5)
    scheduler = scheduler_of(llm)
    assert not scheduler.requests
    # One step with nothing scheduled tells the worker about the last finished requests.
    generate(llm, [prompt(1)], 1)
    assert worker_of(llm)._steps.num_requests <= 1
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


def test_chat(llm):
    output = llm.chat(
        [{"role": "user", "content": "hi there"}],
        SamplingParams(temperature=0, max_tokens=5, ignore_eos=True),
        use_tqdm=False,
    )[0]
    assert output.prompt == "u:hi there|a:"
    assert len(output.outputs[0].token_ids) == 5
    assert len(output.outputs[0].text) == 5


def test_stop_token_ends_a_request(llm, tiny):
    ids = prompt(9)
    expected = greedy_reference(tiny[1], ids, 10)
    stop = expected[4]
    got = generate(llm, [ids], 10, stop_token_ids=[stop], ignore_eos=False)[0]
    assert got == expected[: expected.index(stop) + 1]


def test_several_samples_of_one_prompt(llm):
    outputs = llm.generate(
        {"prompt_token_ids": prompt(6)},
        SamplingParams(n=3, temperature=1, seed=4, max_tokens=8, ignore_eos=True),
        use_tqdm=False,
    )
    samples = [tuple(o.token_ids) for o in outputs[0].outputs]
    assert len(samples) == 3 and len(set(samples)) > 1


def test_a_seeded_request_does_not_notice_its_neighbours(llm):
    ids = prompt(11)
    alone = generate(llm, [ids], 8, temperature=1.0, seed=5)[0]
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=8, ignore_eos=True)
    other = SamplingParams(temperature=1.3, max_tokens=5, ignore_eos=True)
    prompts = [{"prompt_token_ids": p} for p in (prompt(3), ids, prompt(40))]
    outputs = llm.generate(prompts, [other, params, other], use_tqdm=False)
    assert list(outputs[1].outputs[0].token_ids) == alone


@pytest.mark.compiled
def test_logprobs_equal_those_of_transformers(llm, tiny):
    ids = prompt(10)
    output = llm.generate(
        {"prompt_token_ids": ids},
        SamplingParams(temperature=0, max_tokens=4, logprobs=3, ignore_eos=True),
        use_tqdm=False,
    )[0].outputs[0]
    tokens = list(output.token_ids)
    with torch.no_grad():
        rows = tiny[1](torch.tensor([ids + tokens])).logits[0].log_softmax(-1)
    for i, (token, alternatives) in enumerate(zip(tokens, output.logprobs, strict=True)):
        row = rows[len(ids) - 1 + i]
        assert alternatives[token].logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert set(row.topk(3).indices.tolist()) <= set(alternatives)


def test_no_alternatives_is_the_logprob_of_the_token(llm):
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=0, ignore_eos=True)
    output = llm.generate({"prompt_token_ids": prompt(8)}, params, use_tqdm=False)[0].outputs[0]
    assert [set(row) for row in output.logprobs] == [{token} for token in output.token_ids]
    assert all(
        row[token].logprob < 0 for row, token in zip(output.logprobs, output.token_ids, strict=True)
    )


def test_structured_output_beside_free_text(llm):
    from vllm.sampling_params import StructuredOutputsParams

    choice = SamplingParams(
        temperature=0,
        max_tokens=8,
        structured_outputs=StructuredOutputsParams(choice=["yes", "no"]),
    )
    free = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    ids = prompt(12)
    outputs = llm.generate(
        [{"prompt_token_ids": ids}, {"prompt_token_ids": ids}], [choice, free], use_tqdm=False
    )
    assert outputs[0].outputs[0].text in {"yes", "no"}
    assert list(outputs[1].outputs[0].token_ids) == generate(llm, [ids], 8)[0]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"prompt_token_ids": []}, "empty"),
        ({"prompt": ""}, "empty"),
        ({"prompt_token_ids": [1] * 64}, "64"),
        ({"prompt_token_ids": [1] * 65}, "64"),
        ({"prompt_token_ids": [5, 131]}, "131|vocab"),
        ({"prompt_token_ids": [5, -1]}, "-1|vocab|negative"),
    ],
)
def test_a_bad_prompt_is_refused_and_the_engine_lives(llm, tiny, request_, message):
    with pytest.raises(VLLMValidationError, match=message):
        llm.generate(request_, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    ids = prompt(5)
    assert generate(llm, [ids], 3) == [greedy_reference(tiny[1], ids, 3)]


def test_an_unsupported_parameter_is_refused_by_name(llm):
    with pytest.raises(VLLMValidationError, match="logprob_token_ids is not supported"):
        generate(llm, [prompt(4)], logprob_token_ids=[3])


def test_a_seed_beyond_64_bits_is_refused_and_the_engine_lives(llm):
    with pytest.raises(VLLMValidationError, match="seed"):
        generate(llm, [prompt(4)], temperature=1.0, seed=2**64)
    assert generate(llm, [prompt(4)], 2, temperature=1.0, seed=2**64 - 1)


def test_preemption_does_not_change_tokens(tiny):
    # 15 usable blocks of 4 positions cannot hold four requests of 14 + 20 tokens.
    prompts = [prompt(14, seed=s) for s in range(4)]
    expected = [greedy_reference(tiny[1], ids, 20) for ids in prompts]
    with open_llm(
        tiny[0], max_model_len=40, num_gpu_blocks_override=16, enable_prefix_caching=False
    ) as engine:
        preempted = count_preemptions(engine)
        assert generate(engine, prompts, 20) == expected
        assert preempted, "the cache was meant to be too small"
        seeded = {"temperature": 1.0, "seed": 3}
        crowded = generate(engine, prompts, 20, **seeded)
        alone = [generate(engine, [ids], 20, **seeded)[0] for ids in prompts]
        assert crowded == alone


def test_a_sharded_checkpoint_with_a_stray_file(tmp_path):
    model = save_llama(tmp_path, "awkward", shards=True)
    prompts = [prompt(n) for n in (3, 40)]
    with open_llm(tmp_path, skip_tokenizer_init=True) as engine:
        got = generate(engine, prompts, 6, detokenize=False)
    assert got == [greedy_reference(model, ids, 6) for ids in prompts]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 1, "max_num_batched_tokens": 7},
        {"max_num_seqs": 3, "max_num_batched_tokens": 64, "block_size": 8},
        {
            "max_num_seqs": 7,
            "additional_config": {
                "neuron_config": {
                    "num_batched_tokens_buckets": [5, 32],
                    "num_seqs_buckets": [2, 7],
                }
            },
        },
    ],
    ids=["one-by-one", "unchunked", "odd-buckets"],
)
def test_shapes_do_not_change_tokens(tiny, settings):
    prompts = [prompt(n, seed=2) for n in (1, 33, 6, 20)]
    expected = [greedy_reference(tiny[1], ids, 6) for ids in prompts]
    with open_llm(tiny[0], **settings) as engine:
        assert generate(engine, prompts, 6) == expected
