# SPDX-License-Identifier: Apache-2.0
"""A real model with real weights: SmolLM2-135M-Instruct against Transformers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.harness import incremental_logits, make_rig, relative_error
from trnport import bootstrap
from trnport.adapters.cli.demo_model import default_directory
from trnport.adapters.local import LocalWorld

pytestmark = pytest.mark.slow
BUDGET = 1e-5
QUESTION = "What is the capital of France?"
BUCKETS = {
    "num_batched_tokens_buckets": [40, 64, 128],
    "num_seqs_buckets": [1, 2, 3],
    "decode_context_length_buckets": [48, 96],
}


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    directory = default_directory()
    if not (directory / "config.json").exists():
        pytest.skip("the demo model is not here; run `make model`")
    return directory


@cache
def reference(path: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # greedy text goes on past the end of the answer
    return model


def question_ids(path: Path, question: str = QUESTION) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(path)
    messages = [{"role": "user", "content": question}]
    ids: list[int] = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    return ids


def greedy(path: Path, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    output = reference(path).generate(
        ids, attention_mask=mask, max_new_tokens=count, do_sample=False
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def test_prefill_and_each_decode_step_at_every_bucket(checkpoint: Path) -> None:
    rig = make_rig(
        checkpoint, max_model_len=128, max_num_seqs=3, block_size=16, neuron_config=BUCKETS
    )
    prompt = question_ids(checkpoint)
    for length in (len(prompt), 64, 90):
        tokens = (prompt * 3)[:length]
        forced = greedy(checkpoint, tokens, 12)
        actual = rig.teacher_forced(tokens, forced)
        expected = incremental_logits(reference(checkpoint), tokens, forced)
        assert relative_error(actual, expected) < BUDGET
        assert actual.argmax(-1)[:-1].tolist() == forced
    names = set(rig.executor.program_names)
    assert {"prefill_s40", "prefill_s64", "prefill_s128"} <= names
    assert {"decode_b1_ctx48", "decode_b1_ctx96", "decode_b1_ctx128"} <= names


def test_greedy_text_is_transformers_text_for_64_tokens_alone_and_in_a_batch(
    checkpoint: Path,
) -> None:
    questions = [QUESTION, "Write one sentence about the sea.", "Count from one to five."]
    prompts = [question_ids(checkpoint, question) for question in questions]
    expected = [greedy(checkpoint, prompt, 64) for prompt in prompts]
    session = bootstrap.open_session(
        checkpoint,
        dtype=torch.float32,
        max_model_len=128,
        max_num_seqs=3,
        neuron_config=BUCKETS,
    )
    assert session.generate(prompts, max_tokens=64) == expected
    assert session.generate(prompts[1:2], max_tokens=64) == expected[1:2]


def test_the_answer_is_paris(checkpoint: Path) -> None:
    session = bootstrap.open_session(checkpoint, dtype=torch.float32, max_model_len=128)
    (answer,) = session.generate([question_ids(checkpoint)], max_tokens=20, stop_ids=[2])
    text = AutoTokenizer.from_pretrained(checkpoint).decode(answer, skip_special_tokens=True)
    assert text == "The capital of France is Paris."


@pytest.mark.parametrize("tp", [3, 9])
def test_ranks_agree_with_one(checkpoint: Path, tp: int) -> None:
    prompt = question_ids(checkpoint)
    forced = greedy(checkpoint, prompt, 4)

    def one_rank(collectives: Any) -> torch.Tensor:
        rig = make_rig(checkpoint, max_model_len=64, block_size=16, collectives=collectives)
        return rig.teacher_forced(prompt, forced)

    expected = incremental_logits(reference(checkpoint), prompt, forced)
    for actual in LocalWorld(tp).run(one_rank):
        assert relative_error(actual, expected) < BUDGET


def test_bf16_errs_no_more_than_transformers_in_bf16(checkpoint: Path) -> None:
    prompt = question_ids(checkpoint)
    forced = greedy(checkpoint, prompt, 8)
    truth = incremental_logits(reference(checkpoint), prompt, forced)
    peer_model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
    peer = incremental_logits(peer_model, prompt, forced)
    rig = make_rig(checkpoint, dtype=torch.bfloat16, max_model_len=64, block_size=16)
    ours = rig.teacher_forced(prompt, forced).float()
    assert (ours - truth).square().mean() <= 1.5 * (peer - truth).square().mean()
