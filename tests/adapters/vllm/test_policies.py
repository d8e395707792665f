# SPDX-License-Identifier: Apache-2.0
"""Every schedule policy gives the same tokens, with preemptions, aborts and shared prefixes."""

import random

import pytest

pytest.importorskip("vllm")

from tests.adapters.vllm.conftest import (
    count_preemptions,
    generate,
    open_llm,
    save_tokenizer,
    scheduler_of,
)
from tests.adapters.vllm.test_traffic import drive, random_requests
from tests.zoo_windows import save_window_model

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SETTINGS = {"max_model_len": 40, "max_num_batched_tokens": 16, "num_gpu_blocks_override": 18}


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    """A model with one group of layers, and one with three."""
    qwen = tmp_path_factory.mktemp("traffic-qwen3")
    save_window_model(qwen, "qwen3", "mixed_w7")
    save_tokenizer(qwen)
    return {"llama": tiny[0], "qwen3": qwen}


@pytest.mark.parametrize(
    ("policy", "model", "blocks"),
    [
        ("mixed", "qwen3", 34),
        ("prefill_first", "llama", 18),
        ("decode_first", "qwen3", 34),
    ],
)
def test_random_traffic(folders, policy, model, blocks):
    chance = random.Random(f"{policy}-{model}")
    requests = random_requests(chance, 18)
    neuron_config = {"schedule_policy": policy, "num_batched_tokens_buckets": [6, 16]}
    with open_llm(
        folders[model],
        **SETTINGS | {"num_gpu_blocks_override": blocks},
        additional_config={"neuron_config": neuron_config},
    ) as engine:
        scheduler = scheduler_of(engine)
        preemptions = count_preemptions(engine)
        outputs = drive(engine, requests, chance)
        assert len(outputs) > 5 and preemptions, "the traffic was meant to be rough"
        pool = scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
        for index, tokens in outputs.items():
            prompt, count, params = requests[index]
            scheduler.reset_prefix_cache()
            assert generate(engine, [prompt], count, **params) == [tokens]
