# SPDX-License-Identifier: Apache-2.0
"""Shards: together they are the whole, and each is read by its own rank alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trnport.adapters.fake.weights import RecordingWeightSource
from trnport.adapters.memory import InMemoryWeightSource
from trnport.core.errors import CheckpointError, ConfigError
from trnport.core.parallel import padded_shard_size
from trnport.core.weights import (
    SafetensorsWeightLoader,
    WeightLoader,
    first_rank_weight_loader,
    get_weight_loader,
    set_weight_loader,
    sharding_weight_loader,
    sharding_weight_loader_with_padding,
    transposed_weight_loader,
    with_rank_override,
)


def numbered(*shape: int) -> Tensor:
    """Every entry is different and none is zero, so that no mix-up goes unnoticed."""
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def load(loader: WeightLoader, rank: int, *stored: Tensor) -> tuple[Tensor, RecordingWeightSource]:
    source = RecordingWeightSource(
        InMemoryWeightSource({str(i): tensor for i, tensor in enumerate(stored)})
    )
    tensor = loader.transform([source.open(name) for name in source.names()], rank)
    return tensor, source


SIZES = st.one_of(st.integers(1, 20), st.sampled_from([77, 131]))


@given(size=SIZES, other=st.integers(1, 4), tp=st.integers(1, 8), transposed=st.booleans(),
       dim=st.sampled_from([0, 1, -1, -2]))  # fmt: skip
def test_padded_shards_concatenate_to_the_original(
    size: int, other: int, tp: int, transposed: bool, dim: int
) -> None:
    parameter = numbered(size, other) if dim in {0, -2} else numbered(other, size)
    stored = parameter.t().contiguous() if transposed else parameter
    width = padded_shard_size(size, tp)
    loader = sharding_weight_loader_with_padding(dim, width, tp, transposed, full_size=size)

    shards, nbytes = [], 0
    for rank in range(tp):
        shard, source = load(loader, rank, stored)
        assert shard.shape[dim] == width
        assert shard.is_contiguous()
        shards.append(shard)
        nbytes += source.bytes_read()
        real = max(0, min(width, size - rank * width))
        assert source.bytes_read() == real * other * 4
        assert len(source.reads) == (1 if real else 0), "a shard of padding reads nothing"

    whole = torch.cat(shards, dim)
    assert torch.equal(whole.narrow(dim, 0, size), parameter)
    assert not whole.narrow(dim, size, width * tp - size).any()
    assert nbytes == stored.nbytes


@pytest.mark.parametrize("tp", range(1, 9))
def test_equal_shards_of_a_down_projection_read_columns_of_their_own(tp: int) -> None:
    parameter = numbered(8 * tp, 5)  # [in, out], stored as [out, in]
    loader = sharding_weight_loader(0, 8, tp, is_storage_transposed=True)
    boxes = []
    for rank in range(tp):
        shard, source = load(loader, rank, parameter.t().contiguous())
        assert torch.equal(shard, parameter[8 * rank : 8 * rank + 8])
        boxes += [read.box for read in source.reads]
    assert boxes == [((0, 5), (8 * rank, 8 * rank + 8)) for rank in range(tp)]


def test_the_transposed_flag_matters_even_for_a_square_matrix() -> None:
    square = numbered(4, 4)
    plain, _ = load(sharding_weight_loader(1, 2, 2), 1, square)
    transposed, _ = load(sharding_weight_loader(1, 2, 2, True), 1, square)
    assert torch.equal(plain, square[:, 2:])
    assert torch.equal(transposed, square.t()[:, 2:])


def test_a_transposed_stack_swaps_the_last_two_dimensions_only() -> None:
    stored = numbered(3, 6, 5)  # experts, out, in
    shard, _ = load(sharding_weight_loader(2, 3, 2, True), 1, stored)
    assert torch.equal(shard, stored.mT[:, :, 3:])
    experts, _ = load(sharding_weight_loader(0, 1, 3, True), 2, stored)
    assert torch.equal(experts, stored.mT[2:])


def test_shards_repeat_beyond_their_number() -> None:
    stored = numbered(6, 2)
    loader = sharding_weight_loader(0, 3, 2)
    for rank in range(7):
        assert torch.equal(load(loader, rank, stored)[0], stored[rank % 2 * 3 :][:3])


def test_the_padding_may_be_wider_than_needed() -> None:
    # Shards of a multiple of 4, say: the last two of four hold nothing real.
    loader = sharding_weight_loader_with_padding(0, 4, 4, full_size=7)
    shards = [load(loader, rank, numbered(7))[0] for rank in range(4)]
    assert torch.cat(shards).tolist() == [1, 2, 3, 4, 5, 6, 7, 0] + [0] * 8


def test_padding_keeps_the_stored_dtype() -> None:
    loader = sharding_weight_loader_with_padding(0, 2, 4, full_size=3)
    for rank in range(4):
        assert load(loader, rank, numbered(3).bfloat16())[0].dtype == torch.bfloat16


@pytest.mark.parametrize("wrong", [5, 7, 12], ids=["smaller", "larger", "double"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_stored_tensor_of_another_extent_is_refused_unread(wrong: int, rank: int) -> None:
    for loader in (
        sharding_weight_loader(0, 2, 3),
        sharding_weight_loader_with_padding(0, 4, 3, full_size=6),
    ):
        source = RecordingWeightSource(InMemoryWeightSource({"w": numbered(wrong, 2)}))
        with pytest.raises(CheckpointError, match=rf"holds {wrong}, expected 6"):
            loader.transform([source.open("w")], rank)
        assert source.reads == []


def test_a_missing_dimension_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no dimension 1"):
        load(sharding_weight_loader(1, 2, 3), 0, numbered(6))
    with pytest.raises(CheckpointError, match="transposed"):
        load(sharding_weight_loader(0, 2, 3, True), 0, numbered(6))


def test_shards_too_small_for_the_tensor_are_refused_when_built() -> None:
    with pytest.raises(ConfigError, match="full_size=9"):
        sharding_weight_loader_with_padding(0, 2, 4, full_size=9)
    with pytest.raises(ConfigError, match="0 shard"):
        sharding_weight_loader(0, 2, 0)


@pytest.mark.parametrize(
    "loader",
    [
        WeightLoader(),
        sharding_weight_loader(0, 2, 2),
        first_rank_weight_loader(),
        transposed_weight_loader(),
    ],
)
def test_a_loader_of_one_tensor_refuses_two(loader: WeightLoader) -> None:
    with pytest.raises(CheckpointError, match=r"takes 1 .* not 2"):
        load(loader, 0, numbered(4, 4), numbered(4, 4))


def test_rank_override_wins_over_any_rank() -> None:
    stored = numbered(6, 2)
    loader = with_rank_override(sharding_weight_loader(0, 2, 3), 2)
    for rank in range(3):
        assert torch.equal(load(loader, rank, stored)[0], stored[4:])
    assert loader.stored_shapes is not None
    assert loader.stored_shapes((2, 2)) == [(6, 2)]


def test_rank_override_keeps_what_the_loader_accepts() -> None:
    loader = WeightLoader(lambda slices, rank: slices[0][()], extra_dtypes=[torch.uint8])
    assert with_rank_override(loader, 1).extra_dtypes == {torch.uint8}


def test_the_transposing_loader_gives_every_rank_the_whole() -> None:
    stored = numbered(3, 5)
    for rank in range(3):
        tensor, _ = load(transposed_weight_loader(), rank, stored)
        assert torch.equal(tensor, stored.t())
        assert tensor.is_contiguous()
    with pytest.raises(CheckpointError, match="not a matrix"):
        load(transposed_weight_loader(), 0, numbered(5))


def test_the_first_rank_loader_reads_on_the_first_rank_only() -> None:
    bias = numbered(5).bfloat16()
    tensor, source = load(first_rank_weight_loader(), 0, bias)
    assert torch.equal(tensor, bias)
    for rank in (1, 2):
        tensor, source = load(first_rank_weight_loader(), rank, bias)
        assert torch.equal(tensor, torch.zeros_like(bias))
        assert source.reads == []


def test_loaders_are_attached_to_parameters() -> None:
    param = torch.nn.Parameter(torch.empty(2, device="meta"), requires_grad=False)
    assert torch.equal(load(get_weight_loader(param), 3, numbered(2))[0], numbered(2))
    loader = sharding_weight_loader(0, 2, 2)
    set_weight_loader(param, loader)
    assert get_weight_loader(param) is loader


def test_the_published_name_takes_a_transform() -> None:
    loader = SafetensorsWeightLoader(transform=lambda slices, rank: slices[0][()] * rank)
    assert torch.equal(loader.load(list(map_open(numbered(2))), 3), numbered(2) * 3)
    whole = SafetensorsWeightLoader()
    assert torch.equal(load(whole, 0, numbered(2, 2))[0], numbered(2, 2))


def map_open(*stored: Tensor):
    source = InMemoryWeightSource({str(i): tensor for i, tensor in enumerate(stored)})
    return (source.open(name) for name in source.names())
