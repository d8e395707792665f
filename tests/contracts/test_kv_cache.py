# SPDX-License-Identifier: Apache-2.0
"""Contract of the KVCacheStore port, then what each adapter adds."""

from __future__ import annotations

import math

import pytest
import torch

from trnport.adapters.fake import ContractViolationError, StrictKVCacheStore
from trnport.adapters.paged import PagedKVCacheStore
from trnport.core.errors import CapacityError, ConfigError
from trnport.core.kv import KVGroup, KVGroups, KVSpec, LayerSpec
from trnport.core.ports import KVCacheStore

SPEC = KVSpec(
    (
        LayerSpec("layers.0.self_attn", 3, 10, torch.float32),
        LayerSpec("layers.1.self_attn", 1, 5, torch.bfloat16, sliding_window=8),
    )
)
BYTES_PER_TOKEN = 2 * (3 * 10 * 4 + 1 * 5 * 2)


def spec_of(*names: str, dtype: torch.dtype = torch.float32) -> KVSpec:
    return KVSpec(tuple(LayerSpec(name, 2, 4, dtype) for name in names))


@pytest.mark.parametrize(("num_blocks", "block_size"), [(2, 1), (7, 3), (5, 16)])
def test_every_layer_gets_keys_and_values(
    store: KVCacheStore, num_blocks: int, block_size: int
) -> None:
    caches = store.allocate(SPEC, num_blocks, block_size)
    assert list(caches) == [layer.name for layer in SPEC.layers]
    for layer in SPEC.layers:
        assert len(caches[layer.name]) == 2
        for cache in caches[layer.name]:
            assert cache.shape == (num_blocks, layer.num_kv_heads, block_size, layer.head_size)
            assert cache.dtype == layer.dtype
            assert cache.is_contiguous()


def test_no_two_caches_share_memory(store: KVCacheStore) -> None:
    caches = [cache for pair in store.allocate(SPEC, 3, 4).values() for cache in pair]
    for number, cache in enumerate(caches):
        cache.fill_(number)
    assert all((cache == number).all() for number, cache in enumerate(caches))


def test_bytes_are_counted(store: KVCacheStore) -> None:
    assert store.bytes_per_block(SPEC, 16) == 16 * BYTES_PER_TOKEN
    assert store.allocated_bytes() == 0
    caches = store.allocate(SPEC, 5, 16)
    held = sum(cache.nbytes for pair in caches.values() for cache in pair)
    assert store.allocated_bytes() == held == 5 * store.bytes_per_block(SPEC, 16)
    store.allocate(spec_of("drafter"), 3, 2)
    assert store.allocated_bytes() == held + 3 * 2 * 2 * 2 * 4 * 4


GROUPS = KVGroups((KVGroup(("a", "c")), KVGroup(("b",), sliding_window=3)))


def test_layers_of_different_groups_share_memory_place_by_place(store: KVCacheStore) -> None:
    spec = spec_of("a", "b", "c")
    caches = store.allocate(spec, 3, 4, GROUPS)
    assert list(caches) == ["a", "b", "c"]
    for number, name in enumerate(caches):
        for cache in caches[name]:
            cache[number] = number
    for ours, theirs in zip(caches["a"], caches["b"], strict=True):
        assert ours.data_ptr() == theirs.data_ptr()
        assert (ours[1] == 1).all()
    assert len({cache.data_ptr() for pair in caches.values() for cache in pair}) == 4


def test_shared_memory_is_counted_once(store: KVCacheStore) -> None:
    spec = spec_of("a", "b", "c")
    assert store.bytes_per_block(spec, 4, GROUPS) == store.bytes_per_block(spec_of("a", "c"), 4)
    store.allocate(spec, 3, 4, GROUPS)
    assert store.allocated_bytes() == 3 * store.bytes_per_block(spec, 4, GROUPS)


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c", "d")])
def test_every_layer_has_one_group(store: KVCacheStore, names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="hold the layers"):
        store.allocate(spec_of(*names), 3, 4, GROUPS)
    with pytest.raises(ConfigError, match="belongs to one group"):
        KVGroups((KVGroup(("a",)), KVGroup(("b", "a"))))


def test_shared_memory_has_one_shape(store: KVCacheStore) -> None:
    spec = KVSpec((*spec_of("a", "c").layers, LayerSpec("b", 4, 2, torch.float32)))
    with pytest.raises(ConfigError, match=r"\['a', 'b'\] would share memory"):
        store.allocate(spec, 3, 4, GROUPS)


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "told"),
    [(1, 4, "num_blocks"), (0, 4, "num_blocks"), (-3, 4, "num_blocks"), (2, 0, "block_size")],
)
def test_sizes_out_of_range_are_refused(
    store: KVCacheStore, num_blocks: int, block_size: int, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        store.allocate(SPEC, num_blocks, block_size)
    assert store.allocated_bytes() == 0


@pytest.mark.parametrize("names", [(), ("a", "b", "a")])
def test_layers_must_be_named_apart(store: KVCacheStore, names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="layer"):
        store.allocate(spec_of(*names), 2, 4)


# --- paged ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_paged_fills_floating_point_caches(dtype: torch.dtype) -> None:
    caches = PagedKVCacheStore(fill=math.nan).allocate(spec_of("a", dtype=dtype), 2, 3)
    assert all(cache.float().isnan().all() for cache in caches["a"])
    integers = spec_of("b", dtype=torch.int8)
    (plain,) = PagedKVCacheStore(fill=math.nan).allocate(integers, 2, 3).values()
    assert (plain[0] == 0).all()


def test_paged_spends_its_budget_to_the_last_block() -> None:
    per_block = 16 * BYTES_PER_TOKEN
    store = PagedKVCacheStore(budget_bytes=5 * per_block + per_block - 1)
    with pytest.raises(CapacityError, match=r"6 KV blocks .* 5 blocks fit"):
        store.allocate(SPEC, 6, 16)
    assert store.allocated_bytes() == 0
    store.allocate(SPEC, 3, 16)
    with pytest.raises(CapacityError, match="2 blocks fit"):
        store.allocate(SPEC, 3, 16)
    store.allocate(SPEC, 2, 16)
    assert store.allocated_bytes() == 5 * per_block
    with pytest.raises(ConfigError, match="budget_bytes"):
        PagedKVCacheStore(budget_bytes=-1)


def test_paged_reports_memory_that_is_not_there() -> None:
    store = PagedKVCacheStore()
    with pytest.raises(CapacityError, match=r"on cpu; \d+ blocks would have"):
        store.allocate(SPEC, 2**50, 16)
    assert store.allocated_bytes() == 0


# --- strict -----------------------------------------------------------------------------------

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS)
def test_strict_starts_as_nan_and_sees_every_write(dtype: torch.dtype) -> None:
    store = StrictKVCacheStore()
    k_cache, v_cache = store.allocate(spec_of("a", "b", dtype=dtype), 4, 3)["b"]
    assert k_cache.float().isnan().all()
    assert store.written_slots("b") == set()
    k_cache[1, 0, 2, 3] = 0.0
    v_cache[3, 1, 0, 0] = math.nan  # an arithmetic NaN counts as written
    assert store.written_slots("b") == {5, 9}
    assert store.written_slots("a") == set()
    store.check()
    store.check(owned_blocks=[1, 3])
    with pytest.raises(ContractViolationError, match=r"b: slots \[9\] of blocks \[3\].*\[1, 2\]"):
        store.check(owned_blocks=[1, 2])


@pytest.mark.parametrize("owned", [None, [0, 1, 2]])
def test_strict_guards_the_null_block(owned: list[int] | None) -> None:
    store = StrictKVCacheStore()
    _, v_cache = store.allocate(spec_of("a"), 3, 2)["a"]
    store.check(owned)
    v_cache[0, 1, 1, 2] = 1.0
    with pytest.raises(ContractViolationError, match=r"a: slots \[1\] of blocks \[0\]"):
        store.check(owned)


def test_strict_allocates_a_layer_once() -> None:
    store = StrictKVCacheStore()
    store.allocate(spec_of("a"), 2, 2)
    with pytest.raises(ConfigError, match="new"):
        store.allocate(spec_of("a"), 2, 2)
