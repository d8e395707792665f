# SPDX-License-Identifier: Apache-2.0
"""KV specs as vLLM sees them, and copies of blocks."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from vllm.v1.core.kv_cache_planning import (
    get_kv_cache_config_from_groups,
    get_kv_cache_groups,
)
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.kv_cache_interface import KVCacheLayout

from trnport.adapters.paged import PagedKVCacheStore
from trnport.adapters.vllm.kv import LAYOUT, copy_blocks, groups_of, vllm_specs
from trnport.core.errors import ConfigError
from trnport.core.kv import KVGroups, KVSpec, LayerSpec
from trnport.core.kv.capacity import KVCapacity

pytestmark = pytest.mark.vllm

SPEC = KVSpec(
    [
        LayerSpec("layers.0.self_attn", num_kv_heads=3, head_size=10, dtype=torch.bfloat16),
        LayerSpec(
            "layers.1.self_attn",
            num_kv_heads=3,
            head_size=10,
            dtype=torch.bfloat16,
            sliding_window=7,
        ),
    ]
)


def spec_of(windows):
    """A layer for each window, with names in order."""
    return KVSpec(
        tuple(
            LayerSpec(f"layers.{i}.self_attn", 3, 10, torch.bfloat16, window)
            for i, window in enumerate(windows)
        )
    )


def vllm_config(max_model_len=64, tokens=16, memory=0):
    """As much of a VllmConfig as the planning of the cache reads."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout[LAYOUT],
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        model_config=SimpleNamespace(max_model_len=max_model_len),
        max_in_flight_tokens=tokens,
    )


def planned(spec, block_size=4, memory=2**20, **limits):
    """vLLM's own plan of a model's caches, and the configuration that it planned for."""
    config = vllm_config(**limits)
    groups = get_kv_cache_groups(config, vllm_specs(spec, block_size))
    return get_kv_cache_config_from_groups(config, groups, memory), config


layers = st.lists(st.sampled_from([None, None, 1, 7, 16]), min_size=1, max_size=12)


@given(layers)
def test_our_groups_are_those_of_vllm(windows):
    spec = spec_of(windows)
    assert KVGroups.by_window(spec) == groups_of(planned(spec)[0], 4)


@given(layers, st.integers(1, 9), st.integers(0, 2**20))
def test_vllm_counts_the_bytes_that_the_store_allocates(windows, block_size, memory):
    # Otherwise the scheduler would hand out blocks that do not exist, or leave memory unused.
    spec = spec_of(windows)
    config, _ = planned(spec, block_size, memory)
    groups = groups_of(config, block_size)
    per_block = PagedKVCacheStore().bytes_per_block(spec, block_size, groups)
    assert config.num_blocks == memory // per_block
    if 2 <= config.num_blocks < 99:
        store = PagedKVCacheStore()
        store.allocate(spec, config.num_blocks, block_size, groups)
        assert {tensor.size for tensor in config.kv_cache_tensors} == {store.allocated_bytes()}


@given(layers, st.integers(1, 9), st.integers(1, 200), st.integers(1, 40))
def test_the_plan_counts_the_requests_that_vllm_does(windows, block_size, length, tokens):
    spec = spec_of(windows)
    config, limits = planned(spec, block_size, 2**20, max_model_len=length, tokens=tokens)
    capacity = KVCapacity.of(
        spec,
        block_size=block_size,
        budget_bytes=2**20,
        groups=KVGroups.by_window(spec),
        tokens_in_flight=tokens,
    )
    concurrency = get_max_concurrency_for_kv_cache_config(limits, config)
    assert capacity.num_blocks / capacity.blocks_for(length) == concurrency


def test_layers_that_would_share_memory_need_one_shape():
    odd = KVSpec((*spec_of([None]).layers, LayerSpec("odd", 6, 5, torch.bfloat16, 7)))
    groups = KVGroups.by_window(odd)
    with pytest.raises(ConfigError, match="disable-hybrid-kv-cache-manager"):
        PagedKVCacheStore().allocate(odd, 5, 4, groups)


def test_block_sizes_of_vllms_own_choice_are_refused():
    config, _ = planned(spec_of([None, 7]))
    with pytest.raises(ConfigError, match=r"\[4\] positions per KV block instead of 8"):
        groups_of(config, 8)


def test_blocks_are_copied_in_every_layer():
    caches = PagedKVCacheStore().allocate(SPEC, num_blocks=5, block_size=4)
    for tensors in caches.values():
        for tensor in tensors:
            tensor.copy_(torch.randn(tensor.shape))
    before = {name: [t.clone() for t in tensors] for name, tensors in caches.items()}
    copy_blocks(caches, [(1, 3), (2, 4)])
    for name, tensors in caches.items():
        for now, then in zip(tensors, before[name], strict=True):
            assert torch.equal(now[[3, 4]], then[[1, 2]])
            assert torch.equal(now[:3], then[:3])


def test_a_block_that_is_copied_and_overwritten_at_once_in_shared_memory():
    spec = spec_of([None, 7])
    caches = PagedKVCacheStore(fill=0.0).allocate(spec, 5, 4, KVGroups.by_window(spec))
    for number, (k_cache, _) in enumerate(caches.values(), 1):
        k_cache[1], k_cache[2] = number, 10 * number
    copy_blocks(caches, [(1, 2), (2, 3)])
    k_cache, _ = caches["layers.0.self_attn"]
    assert [k_cache[block].unique().tolist() for block in (1, 2, 3)] == [[2], [2], [20]]


def test_no_copies():
    copy_blocks({}, [])
