# SPDX-License-Identifier: Apache-2.0
"""Fused Q, K and V: each local query head finds its own rows and its own KV head."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trnport.adapters.fake.weights import RecordingWeightSource
from trnport.adapters.memory import InMemoryWeightSource
from trnport.core.errors import CheckpointError, ConfigError
from trnport.core.parallel import HeadSharding
from trnport.core.weights import WeightLoader, fused_qkv_weight_loader, gqa_qkv_weight_loader

D, HIDDEN = 3, 4

#: Every tp that divides 1 to 12 heads, over every number of KV heads that divides them.
SHARDINGS = [
    HeadSharding(heads, kv, tp)
    for heads, kv, tp in itertools.product(range(1, 13), range(1, 13), range(1, 13))
    if heads % kv == 0 and heads % tp == 0
]
STRADDLING = [
    HeadSharding(6, 2, 3),
    HeadSharding(12, 4, 6),
    HeadSharding(12, 3, 2),  # a rank with one KV head twice and another once
    HeadSharding(10, 2, 5),
]
REGULAR = [
    HeadSharding(6, 2, 2),
    HeadSharding(9, 3, 9),
    HeadSharding(8, 2, 8),
    HeadSharding(8, 8, 4),
]


def checkpoint(heads: HeadSharding, bias: bool = False) -> dict[str, Tensor]:
    """Q, K and V whose entries are all different, as ``[heads * D, HIDDEN]`` or ``[heads * D]``."""
    counts = {"q": heads.num_heads, "k": heads.num_kv_heads, "v": heads.num_kv_heads}
    tensors, start = {}, 1
    for name, count in counts.items():
        shape = (count * D,) if bias else (count * D, HIDDEN)
        size = torch.Size(shape).numel()
        tensors[name] = torch.arange(start, start + size).float().reshape(shape)
        start += size
    return tensors


def load(loader: WeightLoader, rank: int, tensors: dict[str, Tensor]):
    source = RecordingWeightSource(InMemoryWeightSource(tensors))
    return loader.transform([source.open(name) for name in "qkv"], rank), source


def assert_heads_match(
    fused: Tensor, heads: HeadSharding, rank: int, tensors: dict[str, Tensor]
) -> None:
    """``fused`` holds the rows of this rank's Q, K and V heads, in the stored layout."""
    per_rank, kv_per_rank = heads.heads_per_rank, heads.kv_heads_per_rank
    local = fused.unflatten(0, (-1, D))
    q, k, v = local.split([per_rank, kv_per_rank, kv_per_rank])
    stored = {name: tensor.unflatten(0, (-1, D)) for name, tensor in tensors.items()}
    for head in range(per_rank):
        model_head = rank * per_rank + head
        model_kv = model_head // (heads.num_heads // heads.num_kv_heads)
        local_kv = head // (per_rank // kv_per_rank)
        assert torch.equal(q[head], stored["q"][model_head])
        assert torch.equal(k[local_kv], stored["k"][model_kv])
        assert torch.equal(v[local_kv], stored["v"][model_kv])


@given(heads=st.sampled_from(SHARDINGS), bias=st.booleans())
def test_every_query_head_finds_its_rows_and_its_kv_head(heads: HeadSharding, bias: bool) -> None:
    tensors = checkpoint(heads, bias)
    loader = gqa_qkv_weight_loader(heads, D, is_storage_transposed=not bias)
    for rank in range(heads.tp):
        fused, _ = load(loader, rank, tensors)
        assert_heads_match(fused if bias else fused.t(), heads, rank, tensors)


@pytest.mark.parametrize("heads", STRADDLING + REGULAR, ids=str)
def test_the_degrees_that_broke_other_engines(heads: HeadSharding) -> None:
    tensors = checkpoint(heads)
    loader = gqa_qkv_weight_loader(heads, D, is_storage_transposed=True)
    for rank in range(heads.tp):
        fused, _ = load(loader, rank, tensors)
        assert fused.is_contiguous()
        assert_heads_match(fused.t(), heads, rank, tensors)


@given(heads=st.sampled_from(SHARDINGS))
def test_a_kv_head_is_read_once_per_rank_that_needs_it(heads: HeadSharding) -> None:
    tensors = checkpoint(heads)
    loader = gqa_qkv_weight_loader(heads, D, is_storage_transposed=True)
    group = heads.num_heads // heads.num_kv_heads
    total = {"q": 0, "k": 0, "v": 0}
    needed_by = 0
    for rank in range(heads.tp):
        mine = range(rank * heads.heads_per_rank, (rank + 1) * heads.heads_per_rank)
        kv = sorted({head // group for head in mine})
        needed_by += len(kv)
        _, source = load(loader, rank, tensors)
        rows = {
            name: [row for read in source.reads if read.name == name for row in range(*read.box[0])]
            for name in "qkv"
        }
        assert all(read.box[1] == (0, HIDDEN) for read in source.reads)
        assert rows["q"] == list(range(mine.start * D, mine.stop * D))
        assert rows["k"] == rows["v"] == list(range(kv[0] * D, (kv[-1] + 1) * D))
        for name in total:
            total[name] += source.bytes_read(name)
    head_bytes = D * HIDDEN * 4
    assert total["q"] == tensors["q"].nbytes
    assert total["k"] == total["v"] == needed_by * head_bytes
    if heads.num_kv_heads % heads.tp == 0:
        assert total["k"] == tensors["k"].nbytes, "no replication, so nothing is read twice"


def test_there_are_straddling_cases_to_test() -> None:
    for heads in STRADDLING:
        assert heads in SHARDINGS
        assert any(len(set(heads.kv_heads(r))) < heads.kv_heads_per_rank for r in range(heads.tp))


@pytest.mark.parametrize("heads", REGULAR, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_the_published_loader_agrees_where_heads_divide(heads: HeadSharding, bias: bool) -> None:
    tensors = checkpoint(heads, bias)
    general = gqa_qkv_weight_loader(heads, D, is_storage_transposed=not bias)
    published = fused_qkv_weight_loader(
        q_size=heads.heads_per_rank * D,
        kv_size=heads.kv_heads_per_rank * D,
        shard_dim=0 if bias else 1,
        num_shards=heads.tp,
        is_storage_transposed=not bias,
        num_kv_replicas=max(1, heads.tp // heads.num_kv_heads),
    )
    for rank in range(2 * heads.tp):
        fused, source = load(published, rank, tensors)
        expected, reads = load(general, rank, tensors)
        assert torch.equal(fused, expected)
        assert source.reads == reads.reads
    assert published.stored_shapes is not None
    assert general.stored_shapes is not None
    shape = tuple(fused.shape)
    assert published.stored_shapes(shape) == general.stored_shapes(shape)
    assert published.stored_shapes(shape) == [tuple(tensors[name].shape) for name in "qkv"]


def test_untransposed_weights_shard_over_rows() -> None:
    heads = HeadSharding(6, 2, 3)
    tensors = checkpoint(heads)
    loader = gqa_qkv_weight_loader(heads, D, shard_dim=0)
    for rank in range(3):
        assert_heads_match(load(loader, rank, tensors)[0], heads, rank, tensors)


LOADERS = {
    "gqa": gqa_qkv_weight_loader(HeadSharding(6, 2, 2), D, is_storage_transposed=True),
    "fused": fused_qkv_weight_loader(3 * D, D, 1, 2, True),
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("change", [-D, D, 2 * D])
def test_wrong_row_counts_are_refused_unread(loader: WeightLoader, name: str, change: int) -> None:
    tensors = checkpoint(HeadSharding(6, 2, 2))
    rows = tensors[name].shape[0]
    tensors[name] = torch.zeros(rows + change, HIDDEN)
    source = RecordingWeightSource(InMemoryWeightSource(tensors))
    with pytest.raises(CheckpointError, match=f"holds {rows + change}, expected {rows}"):
        loader.transform([source.open(part) for part in "qkv"], 0)
    assert source.reads == []


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_q_k_and_v_of_different_hidden_sizes_are_refused(loader: WeightLoader) -> None:
    tensors = checkpoint(HeadSharding(6, 2, 2))
    tensors["v"] = torch.zeros(2 * D, HIDDEN + 1)
    with pytest.raises(CheckpointError, match="do not fit together"):
        load(loader, 0, tensors)


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_the_fused_loaders_take_three_tensors(loader: WeightLoader) -> None:
    source = InMemoryWeightSource(checkpoint(HeadSharding(6, 2, 2)))
    with pytest.raises(CheckpointError, match=r"takes 3 .* not 2"):
        loader.transform([source.open("q"), source.open("k")], 0)


@pytest.mark.parametrize("replicas", [0, 3])
def test_replicas_must_divide_the_shards(replicas: int) -> None:
    with pytest.raises(ConfigError, match="num_kv_replicas"):
        fused_qkv_weight_loader(D, D, 1, 4, True, replicas)
