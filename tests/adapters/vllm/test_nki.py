# SPDX-License-Identifier: Apache-2.0
"""vLLM over our NKI kernels, in the simulator."""

import pytest

pytest.importorskip("vllm")

from tests.adapters.vllm.conftest import generate, greedy_reference, open_llm

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def test_vllm_on_kernels_says_what_transformers_says(tiny):
    config = {"neuron_config": {"kernels": "nki", "num_seqs_buckets": [4]}}
    prompts = [[5, 6, 7, 8, 9], [3] * 20, list(range(3, 43))]  # the last one in two chunks
    with open_llm(tiny[0], additional_config=config) as llm:
        got = generate(llm, prompts, 6)
    assert got == [greedy_reference(tiny[1], prompt, 6) for prompt in prompts]
