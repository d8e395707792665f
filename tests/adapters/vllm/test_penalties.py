# SPDX-License-Identifier: Apache-2.0
"""Penalties and seeds through a whole engine.

The penalties' oracle is Transformers' logits, changed in plain loops as the OpenAI and CTRL
definitions say; for the repetition penalty also Transformers' own processor.
"""

import collections
import random

import pytest
import torch

pytest.importorskip("vllm")

from vllm import SamplingParams

from tests.adapters.vllm.conftest import generate, open_llm
from tests.adapters.vllm.test_llm import prompt

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

COUNT = 16


def penalised(logits, prompt, outputs, presence=0.0, frequency=0.0, repetition=1.0):
    """One row of logits as floats: repetition over prompt and outputs, the others over outputs."""
    row = list(logits)
    for token in {*prompt, *outputs}:
        row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
    for token, times in collections.Counter(outputs).items():
        row[token] -= frequency * times + presence
    return row


def reference(model, prompt, **penalties):
    """Greedy tokens under penalties, and how close the closest decision was."""
    outputs, margin = [], float("inf")
    for _ in range(COUNT):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + outputs])).logits[0, -1].tolist()
        row = penalised(logits, prompt, outputs, **penalties)
        best, second = sorted(row, reverse=True)[:2]
        margin = min(margin, best - second)
        outputs.append(row.index(best))
    return outputs, margin


def penalties_of(chance):
    return {
        "presence": chance.choice([0.0, 0.7, 2.0, -2.0]),
        "frequency": chance.choice([0.0, 0.3, 2.0, -0.5]),
        "repetition": chance.choice([1.0, 1.3, 2.5, 0.6]),
    }


ONE_BY_ONE = [
    {"presence": 1.5}, {"presence": -1.5}, {"frequency": 1.2}, {"frequency": -0.7},
    {"repetition": 1.8}, {"repetition": 0.5},
]  # fmt: skip
MIXED = [penalties_of(random.Random(seed)) for seed in range(14)]


def engine_names(penalties):
    return {f"{name}_penalty": value for name, value in penalties.items()}


def greedy(**more):
    return SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True, **more)


def test_greedy_under_penalties_equals_plain_loops_over_transformers(llm, tiny):
    cases = [*ONE_BY_ONE, *MIXED, {}]
    # Some prompts are over the budget of a step; repeated tokens, since penalties count.
    prompts = [prompt(3 + 7 * i % 41, seed=i) * (1 + i % 2 * (i % 41 < 8)) for i in range(21)]
    prompts = [ids[:46] for ids in prompts]
    expected = [reference(tiny[1], ids, **case) for ids, case in zip(prompts, cases, strict=True)]
    assert min(margin for _, margin in expected) > 1e-4, "a tie would decide by rounding"
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in prompts],
        [greedy(**engine_names(case)) for case in cases],
        use_tqdm=False,
    )
    for case, output, (tokens, _) in zip(cases, outputs, expected, strict=True):
        assert list(output.outputs[0].token_ids) == tokens, case
    # The penalties decided something: without them nearly every answer is another one.
    plain = [reference(tiny[1], ids)[0] for ids in prompts]
    changed = sum(tokens != free for (tokens, _), free in zip(expected, plain, strict=True))
    assert changed >= 18


@pytest.mark.parametrize("penalty", [1.6, 3.0, 0.7])
def test_the_repetition_penalty_equals_that_of_transformers(llm, tiny, penalty):
    for length in (2, 40):
        ids = prompt(length, seed=3)
        with torch.no_grad():
            whole = tiny[1].generate(
                torch.tensor([ids]), max_new_tokens=COUNT, do_sample=False,
                repetition_penalty=penalty,
            )  # fmt: skip
        expected = whole[0, length:].tolist()
        assert generate(llm, [ids], COUNT, repetition_penalty=penalty) == [expected]
        assert expected != reference(tiny[1], ids)[0]


# --- seeds ---------------------------------------------------------------------------------------

SEEDED = {
    "one": {"seed": 11, "temperature": 1.0},
    "many": {"seed": 11, "temperature": 1.3, "n": 3},
    "picky": {"seed": 0, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "n": 2},
    "penalised": {"seed": 2**63, "temperature": 1.0, "frequency_penalty": 0.5},
}
CROWD = [{"temperature": 1.4}, {"temperature": 0}, {"temperature": 1, "seed": 11, "n": 2}]


def samples(engine, asked):
    """Tuples of tokens for each of the parameters, all in one batch."""
    prompts = [{"prompt_token_ids": prompt(5 + 9 * i)} for i in range(len(asked))]
    params = [SamplingParams(max_tokens=10, ignore_eos=True, **one) for one in asked]
    outputs = engine.generate(prompts, params, use_tqdm=False)
    return [[tuple(sample.token_ids) for sample in output.outputs] for output in outputs]


def test_a_seed_means_the_same_alone_in_a_crowd_and_after_a_restart(llm, tiny):
    alone = {name: samples(llm, [one])[0] for name, one in SEEDED.items()}
    for name, drawn in alone.items():
        assert len(set(drawn)) == SEEDED[name].get("n", 1), "samples of one prompt differ"
        assert samples(llm, [SEEDED[name] | {"seed": 12}])[0] != drawn
        # First in the batch, so that the prompt is the same one.
        assert samples(llm, [SEEDED[name], *CROWD])[0] == drawn
    changed = {"max_num_seqs": 7, "max_num_batched_tokens": 9, "block_size": 8, "seed": 1}
    with open_llm(tiny[0], **changed) as restarted:
        assert {name: samples(restarted, [one])[0] for name, one in SEEDED.items()} == alone
        assert samples(restarted, [SEEDED["many"], *CROWD])[0] == alone["many"]


def test_samples_of_one_prompt_are_those_of_consecutive_seeds(llm):
    one = {"seed": 20, "temperature": 1.0}
    several = samples(llm, [one | {"n": 3}])[0]
    assert several == [samples(llm, [one | {"seed": 20 + i}])[0][0] for i in range(3)]
