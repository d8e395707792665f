# SPDX-License-Identifier: Apache-2.0
"""Prompts given as embeddings, against the same prompts as token ids."""

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
)
from tests.adapters.vllm.test_llm import prompt

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

HIDDEN = 48


@pytest.fixture(scope="module")
def table(tiny):
    return tiny[1].get_input_embeddings().weight.detach()


@pytest.fixture(scope="module")
def engine(tiny):
    with open_llm(tiny[0], enable_prompt_embeds=True) as opened:
        yield opened


def run(engine, prompts, count=6, **params):
    params = {"temperature": 0, "max_tokens": count, "ignore_eos": True, **params}
    return engine.generate(prompts, SamplingParams(**params), use_tqdm=False)


def tokens(outputs):
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_embeddings_of_tokens_generate_what_the_tokens_do(engine, tiny, table):
    prompts = [prompt(n, seed=21) for n in (1, 33, 7, 40, 2, 32, 50)]
    given = [
        {"prompt_token_ids": ids} if i % 3 == 2 else {"prompt_embeds": table[ids]}
        for i, ids in enumerate(prompts)
    ]
    expected = [greedy_reference(tiny[1], ids, 6) for ids in prompts]
    assert tokens(run(engine, given)) == expected


def test_ids_and_embeddings_in_one_prompt(engine, tiny, table):
    ids = prompt(37, seed=22)
    mask = [i % 4 != 1 for i in range(37)]
    rows = torch.where(torch.tensor(mask)[:, None], torch.nan, table[ids])
    # Where an embedding counts, vLLM marks the place with an id of its own choice.
    marked = [token if keep else 5000 for token, keep in zip(ids, mask, strict=True)]
    given = {"prompt_embeds": rows, "prompt_token_ids": marked, "prompt_is_token_ids": mask}
    penalty = {"repetition_penalty": 1.7}
    found = tokens(run(engine, [given]))
    assert found == [greedy_reference(tiny[1], ids, 6)]
    run(engine, [given, {"prompt_embeds": table[ids]}], **penalty)


def test_dtypes_are_cast_and_a_batch_of_one_is_a_prompt(engine, table):
    ids = prompt(9, seed=23)
    exact = table[ids].bfloat16()
    same = [exact, exact.double(), exact.float()[None], exact.half().bfloat16()]
    found = tokens(run(engine, [{"prompt_embeds": rows} for rows in same]))
    assert found == [found[0]] * 4


def test_a_prefix_is_shared_by_equal_embeddings_only(engine, tiny, table):
    scheduler_of(engine).reset_prefix_cache()
    first = prompt(33, seed=24)
    second = [*first[:20], *prompt(13, seed=25)]
    run(engine, [{"prompt_embeds": table[first]}])
    for ids, cached in ((first, 32), (second, 20), (prompt(33, seed=26), 0)):
        (output,) = run(engine, [{"prompt_embeds": table[ids]}])
        assert output.num_cached_tokens == cached
        assert tokens([output]) == [greedy_reference(tiny[1], ids, 6)]


def test_preemption_embeds_again(tiny, table):
    prompts = [prompt(14, seed=30 + s) for s in range(4)]
    with open_llm(
        tiny[0], enable_prompt_embeds=True, max_model_len=40, max_num_batched_tokens=9,
        num_gpu_blocks_override=16, enable_prefix_caching=False,
    ) as crowded:  # fmt: skip
        preempted = count_preemptions(crowded)
        found = tokens(run(crowded, [{"prompt_embeds": table[ids]} for ids in prompts], 20))
        assert preempted, "the cache was meant to be too small"
    assert found == [greedy_reference(tiny[1], ids, 20) for ids in prompts]


BAD = {
    "width": ({"prompt_embeds": torch.zeros(3, HIDDEN + 1)}, r"hidden size, 48"),
    "dtype": ({"prompt_embeds": torch.zeros(3, HIDDEN, dtype=torch.int32)}, "floating"),
    "layout": ({"prompt_embeds": torch.ones(3, HIDDEN).to_sparse()}, "dense"),
    "dimensions": ({"prompt_embeds": torch.zeros(HIDDEN)}, "shape"),
    "empty": ({"prompt_embeds": torch.zeros(0, HIDDEN)}, "empty|at least"),
    "too long": ({"prompt_embeds": torch.zeros(64, HIDDEN)}, "64"),
    "lengths": ({"prompt_embeds": torch.zeros(3, HIDDEN), "prompt_token_ids": [1]}, "as many"),
    "vocabulary": (
        {
            "prompt_embeds": torch.zeros(2, HIDDEN),
            "prompt_token_ids": [1, 131],
            "prompt_is_token_ids": [False, True],
        },
        "token id 131",
    ),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD)
def test_bad_embeddings_are_refused_and_the_engine_lives(engine, tiny, given, message):
    with pytest.raises((ValueError, VLLMValidationError), match=message):
        run(engine, [given])
    ids = prompt(5)
    assert generate(engine, [ids], 3) == [greedy_reference(tiny[1], ids, 3)]


def test_prompt_logprobs_of_embeddings_are_refused(engine, table):
    with pytest.raises(VLLMValidationError, match="prompt_logprobs need token ids"):
        run(engine, [{"prompt_embeds": table[:3]}], prompt_logprobs=1)


def test_without_the_switch_embeddings_are_refused_by_name(llm, table):
    with pytest.raises(VLLMValidationError, match="--enable-prompt-embeds"):
        run(llm, [{"prompt_embeds": table[:3]}])
