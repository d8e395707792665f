# SPDX-License-Identifier: Apache-2.0
"""Sliding-window layers in groups of their own, through vLLM, against Transformers."""

import math

import pytest
import torch

pytest.importorskip("vllm")

from tests import compiling
from tests.adapters.vllm.conftest import (
    count_preemptions,
    generate,
    greedy_reference,
    open_llm,
    save_tokenizer,
    scheduler_of,
    worker_of,
)
from tests.zoo_windows import FULL, SLIDING, save_window_model

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

MIXED = {"layer_types": [FULL, SLIDING, SLIDING], "num_hidden_layers": 3}
SMALL = compiling.unless_compiled(num_batched_tokens_buckets=[8, 16], num_seqs_buckets=[1, 4])
SETTINGS = {
    "max_model_len": 80,
    "max_num_batched_tokens": 16,
    "num_gpu_blocks_override": 120,
    "additional_config": {"neuron_config": SMALL},
}


def prompt(length, seed=0):
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return torch.randint(3, 131, (length,), generator=generator).tolist()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """One full layer and two with a window of 7, over blocks of 4."""
    folder = tmp_path_factory.mktemp("tiny-qwen3")
    model = save_window_model(folder, "qwen3", "mixed_w7", **MIXED)
    save_tokenizer(folder)
    return folder, model


@pytest.fixture(scope="module")
def engine(qwen):
    with open_llm(qwen[0], **SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def poisoned(qwen):
    """Every block that vLLM frees is filled with NaN at once; hits would read them."""
    with open_llm(qwen[0], **SETTINGS, enable_prefix_caching=False) as engine:
        poison_freed_blocks(engine)
        yield engine


def poison_freed_blocks(engine):
    pool = scheduler_of(engine).kv_cache_manager.block_pool
    free, freed = pool.free_blocks, []

    def poisoning(blocks, *args, **kwargs):
        blocks = list(blocks)
        ids = [block.block_id for block in blocks if block.block_id]
        for k_cache, v_cache in worker_of(engine)._caches.values():
            k_cache[ids] = v_cache[ids] = math.nan
        freed.extend(ids)
        return free(blocks, *args, **kwargs)

    pool.free_blocks = poisoning
    return freed


def test_layers_of_one_kind_share_a_group_and_groups_share_memory(engine):
    groups = scheduler_of(engine).kv_cache_config.kv_cache_groups
    assert [type(group.kv_cache_spec).__name__ for group in groups] == [
        "FullAttentionSpec",
        "SlidingWindowSpec",
        "SlidingWindowSpec",
    ]
    caches = worker_of(engine)._caches
    assert len(caches) == 3
    assert len({pair[0].data_ptr() for pair in caches.values()}) == 1


@pytest.mark.parametrize("length", [1, 7, 16, 17, 33, 60])
def test_greedy_equals_transformers(engine, qwen, length):
    ids = prompt(length)
    assert generate(engine, [ids], 20) == [greedy_reference(qwen[1], ids, 20)]


@pytest.mark.compiled
def test_freed_blocks_are_never_read(poisoned, qwen):
    prompts = [prompt(n, seed=1) for n in (1, 40, 7, 58, 33, 2, 25)]
    expected = [greedy_reference(qwen[1], ids, 20) for ids in prompts]
    assert generate(poisoned, prompts, 20) == expected


@pytest.mark.compiled
def test_blocks_behind_the_window_are_given_back(poisoned):
    pool = scheduler_of(poisoned).kv_cache_manager.block_pool
    all_free, fewest = pool.get_num_free_blocks(), []
    step = scheduler_of(poisoned).update_from_output

    def watching(*args, **kwargs):
        fewest.append(pool.get_num_free_blocks())
        return step(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_of(poisoned), "update_from_output", watching)
        generate(poisoned, [prompt(60)], 20)
    # 20 blocks of the full layer; window and chunk hold 22 positions in each of two groups.
    assert all_free - min(fewest) <= 20 + 2 * 7
    assert pool.get_num_free_blocks() == all_free


@pytest.mark.parametrize("hit", [0, 1, 3, 4, 5, 7, 8, 11, 12, 16, 17, 24, 31, 32, 33, 40])
def test_a_prefix_hit_equals_a_miss(engine, qwen, hit):
    scheduler_of(engine).reset_prefix_cache()
    ids = prompt(40, seed=2)
    generate(engine, [ids], 3)
    other = ids[:hit] + prompt(41 - hit, seed=3)
    assert generate(engine, [other], 6) == [greedy_reference(qwen[1], other, 6)]
    assert generate(engine, [other], 6) == [greedy_reference(qwen[1], other, 6)]


def test_prefix_hits_happen(engine):
    scheduler = scheduler_of(engine)
    scheduler.reset_prefix_cache()
    ids = prompt(41, seed=4)
    generate(engine, [ids], 2)
    chunks = []
    with pytest.MonkeyPatch.context() as patch:
        execute = worker_of(engine).execute_model

        def watching(schedule):
            chunks.append(schedule.total_num_scheduled_tokens)
            return execute(schedule)

        patch.setattr(worker_of(engine), "execute_model", watching)
        generate(engine, [ids], 2)
    assert chunks[0] == 1, "10 blocks of 4 were cached, in every group"


@pytest.mark.parametrize("caching", [True, False])
def test_preemption_does_not_change_tokens(qwen, caching):
    prompts = [prompt(14, seed=s) for s in range(4)]
    expected = [greedy_reference(qwen[1], ids, 30) for ids in prompts]
    with open_llm(
        qwen[0],
        **SETTINGS | {"max_model_len": 48, "num_gpu_blocks_override": 38},
        enable_prefix_caching=caching,
        # Poisoning goes past the queue of steps: one under way may still read a freed block.
        async_scheduling=caching,
    ) as engine:
        preempted = count_preemptions(engine)
        if not caching:
            poison_freed_blocks(engine)
        assert generate(engine, prompts, 30) == expected
        assert preempted, "the cache was meant to be too small"


def test_without_groups_one_table_serves_all_layers(qwen):
    ids = prompt(33)
    with open_llm(qwen[0], **SETTINGS, disable_hybrid_kv_cache_manager=True) as engine:
        assert len(scheduler_of(engine).kv_cache_config.kv_cache_groups) == 1
        assert generate(engine, [ids], 20) == [greedy_reference(qwen[1], ids, 20)]


@pytest.mark.parametrize(("family", "name"), [("qwen3", "all_sliding_w5"), ("mistral", "windowed")])
def test_a_model_of_windows_alone(tmp_path, family, name):
    model = save_window_model(tmp_path, family, name)
    save_tokenizer(tmp_path)
    prompts = [prompt(n, seed=5) for n in (3, 40, 21)]
    with open_llm(tmp_path, **SETTINGS, enable_prefix_caching=False) as engine:
        freed = poison_freed_blocks(engine)
        assert generate(engine, prompts, 20) == [greedy_reference(model, p, 20) for p in prompts]
        assert freed
