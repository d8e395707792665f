# SPDX-License-Identifier: Apache-2.0
"""KV specs as vLLM sees them, and copies of blocks."""

import pytest
import torch

pytest.importorskip("vllm")

from trnport.adapters.paged import PagedKVCacheStore
from trnport.adapters.vllm.kv import copy_blocks, vllm_specs
from trnport.core.kv.spec import KVSpec, LayerSpec

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


def test_vllm_counts_the_bytes_that_the_store_allocates():
    # Otherwise the scheduler would hand out blocks that do not exist, or leave memory unused.
    specs = vllm_specs(SPEC, block_size=4)
    pages = sum(spec.page_size_bytes for spec in specs.values())
    assert pages == PagedKVCacheStore().bytes_per_block(SPEC, 4)
    assert list(specs) == ["layers.0.self_attn", "layers.1.self_attn"]


def test_a_window_is_passed_on_and_keeps_all_blocks():
    first, second = vllm_specs(SPEC, block_size=4).values()
    assert (first.sliding_window, second.sliding_window) == (None, 7)
    assert type(first) is type(second), "one type of spec means one group of blocks"


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


def test_no_copies():
    copy_blocks({}, [])
