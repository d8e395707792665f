# SPDX-License-Identifier: Apache-2.0
"""What ends a request is in the checkpoint or in the request, and needs no tokenizer."""

import json
import shutil

import pytest

pytest.importorskip("vllm")

from tests.adapters.vllm.conftest import generate, greedy_reference, open_llm

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PROMPT = [9, 77, 30, 4, 101]


def test_each_end_token_of_the_generation_config_ends(tiny, tmp_path):
    expected = greedy_reference(tiny[1], PROMPT, 16)
    ends = sorted({expected[3], expected[9]})
    first = next(i for i, token in enumerate(expected) if token in ends)
    folder = shutil.copytree(tiny[0], tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    with open_llm(folder, generation_config="auto") as engine:
        got = generate(engine, [PROMPT], 16, ignore_eos=False)[0]
        assert got == expected[: first + 1]
        assert generate(engine, [PROMPT], 16) == [expected]
        patient = generate(engine, [PROMPT], 16, ignore_eos=False, min_tokens=12)[0]
        assert len(patient) >= 12 and not set(patient[:12]) & set(ends)


def test_tokens_in_and_out_without_a_tokenizer(tiny, tmp_path):
    folder = shutil.copytree(
        tiny[0], tmp_path / "model", ignore=shutil.ignore_patterns("*token*", "*.jinja")
    )
    assert not list(folder.glob("*token*"))
    with open_llm(folder, skip_tokenizer_init=True) as engine:
        got = generate(engine, [PROMPT], 8, detokenize=False)
    assert got == [greedy_reference(tiny[1], PROMPT, 8)]
