# SPDX-License-Identifier: Apache-2.0
"""A whole model: everything loaded once, or one message with everything that is wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trnport.adapters.fake.weights import RecordingWeightSource
from trnport.adapters.memory import InMemoryWeightSource, RandomWeightSource
from trnport.core.errors import CheckpointError, ConfigError
from trnport.core.parallel import HeadSharding, padded_shard_size
from trnport.core.weights import (
    WeightLoader,
    WeightMapping,
    ahead,
    checkpoint_shapes,
    first_rank_weight_loader,
    get_weight_loader,
    gqa_qkv_weight_loader,
    load_weights,
    set_weight_loader,
    sharding_weight_loader_with_padding,
)
from trnport.core.weights.plan import find_targets
from trnport.core.weights.problems import Problems

VOCAB, HIDDEN, WIDTH, D = 131, 12, 77, 2
HEADS = (6, 2)


def parameter(*shape: int, loader: WeightLoader | None = None) -> nn.Parameter:
    param = nn.Parameter(torch.empty(*shape, device="meta"), requires_grad=False)
    if loader is not None:
        set_weight_loader(param, loader)
    return param


class Tiny(nn.Module):
    """One of each: padded rows, grouped heads, padded columns, a bias for rank 0, a norm."""

    def __init__(self, tp: int = 1) -> None:
        super().__init__()
        pad = sharding_weight_loader_with_padding
        heads = HeadSharding(*HEADS, tp)
        rows, width = padded_shard_size(VOCAB, tp), padded_shard_size(WIDTH, tp)
        columns = (heads.heads_per_rank + 2 * heads.kv_heads_per_rank) * D
        self.embed = parameter(rows, HIDDEN, loader=pad(0, rows, tp, full_size=VOCAB))
        self.attn = nn.Module()
        self.attn.qkv = parameter(HIDDEN, columns, loader=gqa_qkv_weight_loader(heads, D, True))
        self.mlp = nn.Module()
        self.mlp.down = parameter(width, HIDDEN, loader=pad(0, width, tp, True, full_size=WIDTH))
        self.mlp.bias = parameter(HIDDEN, loader=first_rank_weight_loader())
        self.norm = parameter(HIDDEN)
        self.register_buffer("table", torch.arange(4.0), persistent=False)


MAPPING = WeightMapping(
    {
        "embed": "wte.weight",
        "attn.qkv": ["attn.q.weight", "attn.k.weight", "attn.v.weight"],
        "mlp.down": "mlp.down.weight",
        "mlp.bias": "mlp.down.bias",
        "norm": "norm.weight",
    },
    ignored=("*.inv_freq",),
)


def checkpoint() -> dict[str, Tensor]:
    source = RandomWeightSource(checkpoint_shapes(Tiny(), MAPPING), seed=1, std=1.0)
    return {name: source.open(name)[()] for name in source.names()}


def load(tensors: dict[str, Tensor], model: nn.Module | None = None, **options) -> nn.Module:
    model = model or Tiny()
    options = {"mapping": MAPPING, "rank": 0} | options
    load_weights(model, InMemoryWeightSource(tensors), **options)
    return model


def test_shapes_of_the_checkpoint_are_those_of_one_rank() -> None:
    shapes = {
        "wte.weight": (131, 12),
        "attn.q.weight": (12, 12),
        "attn.k.weight": (4, 12),
        "attn.v.weight": (4, 12),
        "mlp.down.weight": (12, 77),
        "mlp.down.bias": (12,),
        "norm.weight": (12,),
    }
    for tp in (1, 2, 3, 6):
        assert checkpoint_shapes(Tiny(tp), MAPPING) == shapes


def test_one_rank_holds_the_whole_checkpoint() -> None:
    tensors = checkpoint()
    model = load(tensors)
    assert torch.equal(model.embed, tensors["wte.weight"])
    fused = torch.cat([tensors[f"attn.{part}.weight"] for part in "qkv"])
    assert torch.equal(model.attn.qkv, fused.t())
    assert torch.equal(model.mlp.down, tensors["mlp.down.weight"].t())
    assert torch.equal(model.mlp.bias, tensors["mlp.down.bias"])
    assert torch.equal(model.norm, tensors["norm.weight"])
    for param in model.parameters():
        assert isinstance(param, nn.Parameter)
        assert not param.requires_grad
        assert param.device.type == "cpu"


def test_nothing_aliases_the_checkpoint() -> None:
    tensors = checkpoint()
    model = load(tensors)
    for param in model.parameters():
        param.fill_(0)
    assert all(tensor.any() for tensor in tensors.values())


@pytest.mark.parametrize("tp", [1, 2, 3, 6])
def test_ranks_together_read_the_checkpoint_plus_exact_replication(tp: int) -> None:
    tensors = checkpoint()
    total: dict[str, int] = dict.fromkeys(tensors, 0)
    heads = HeadSharding(*HEADS, tp)
    kv_copies = sum(len(set(heads.kv_heads(rank))) for rank in range(tp))
    for rank in range(tp):
        source = RecordingWeightSource(InMemoryWeightSource(tensors))
        load_weights(Tiny(tp), source, MAPPING, rank=rank)
        for name in total:
            total[name] += source.bytes_read(name)
    head_bytes = D * HIDDEN * 4
    assert total == {
        "wte.weight": tensors["wte.weight"].nbytes,
        "attn.q.weight": tensors["attn.q.weight"].nbytes,
        "attn.k.weight": kv_copies * head_bytes,
        "attn.v.weight": kv_copies * head_bytes,
        "mlp.down.weight": tensors["mlp.down.weight"].nbytes,
        "mlp.down.bias": tensors["mlp.down.bias"].nbytes,
        "norm.weight": tp * tensors["norm.weight"].nbytes,
    }


def test_shards_of_several_ranks_make_up_the_whole() -> None:
    tensors = checkpoint()
    models = [load(tensors, Tiny(3), rank=rank) for rank in range(3)]
    assert torch.equal(torch.cat([m.embed for m in models])[:VOCAB], tensors["wte.weight"])
    down = torch.cat([m.mlp.down for m in models])[:WIDTH]
    assert torch.equal(down, tensors["mlp.down.weight"].t())
    assert torch.equal(sum(m.mlp.bias for m in models), tensors["mlp.down.bias"])


def test_one_message_names_everything_before_anything_is_read() -> None:
    tensors = checkpoint()
    del tensors["attn.k.weight"], tensors["mlp.down.bias"]
    tensors["norm.weight"] = torch.zeros(HIDDEN + 1)
    tensors["wte.weight"] = torch.zeros(VOCAB + 1, HIDDEN)
    tensors["mlp.down.weight"] = tensors["mlp.down.weight"].to(torch.int8)
    tensors["surplus.weight"] = torch.zeros(2, 3)
    tensors["rotary.inv_freq"] = torch.zeros(3)
    source = RecordingWeightSource(InMemoryWeightSource(tensors))
    model = Tiny()
    model.register_buffer("cache", torch.empty(2, device="meta"))
    model.unmapped = parameter(2)
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, source, MAPPING.merged({"ghost": "norm.weight"}), rank=0)
    message = str(caught.value)
    for line in (
        "2 missing",
        "attn.k.weight (for parameter attn.qkv)",
        "mlp.down.bias (for parameter mlp.bias)",
        "1 in the checkpoint, but used by no parameter",
        "surplus.weight [2, 3] torch.float32",
        "2 of the wrong shape",
        "norm.weight: expected [12], stored [13] (for parameter norm)",
        "wte.weight: expected [131, 12], stored [132, 12] (for parameter embed)",
        "mlp.down.weight: stored as torch.int8, which is not simply cast to torch.float32",
        "cache: buffer on the meta device",
        "unmapped: no checkpoint key in the mapping",
        "ghost: in the mapping, but not in the model",
    ):
        assert line in message
    assert "inv_freq" not in message
    assert source.reads == []
    assert all(param.is_meta for param in model.parameters())


@pytest.mark.parametrize("key", sorted(checkpoint()))
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("tp", [1, 3])
def test_a_larger_tensor_is_refused_along_every_dimension(key: str, dim: int, tp: int) -> None:
    tensors = checkpoint()
    shape = list(tensors[key].shape)
    shape[dim] *= 2
    tensors[key] = torch.zeros(shape)
    for rank in range(tp):
        source = RecordingWeightSource(InMemoryWeightSource(tensors))
        with pytest.raises(CheckpointError, match=rf"1 of the wrong shape.*\n +{key}: expected"):
            load_weights(Tiny(tp), source, MAPPING, rank=rank)
        assert source.reads == []


@pytest.mark.parametrize("key", sorted(checkpoint()))
def test_each_tensor_is_missed_when_it_is_missing(key: str) -> None:
    tensors = checkpoint()
    del tensors[key]
    with pytest.raises(CheckpointError, match=rf"1 missing.*\n +{key} ") as caught:
        load(tensors)
    assert len(str(caught.value).splitlines()) == 3


def test_a_failed_load_leaves_the_model_as_it_was() -> None:
    source = RecordingWeightSource(InMemoryWeightSource(checkpoint()), failing=["norm.weight"])
    model = Tiny()
    with pytest.raises(CheckpointError, match=r"could not be read.*\n +norm \(from norm\.weight\)"):
        load_weights(model, source, MAPPING, rank=0)
    assert source.reads
    assert all(param.is_meta for param in model.parameters())


def test_several_unreadable_tensors_are_all_named() -> None:
    failing = ["norm.weight", "attn.v.weight"]
    source = RecordingWeightSource(InMemoryWeightSource(checkpoint()), failing=failing)
    with pytest.raises(CheckpointError, match="2 that could not be read") as caught:
        load_weights(Tiny(), source, MAPPING, rank=0)
    assert all(key in str(caught.value) for key in failing)


def test_every_parameter_depends_on_its_own_tensor_only() -> None:
    poisoned = RecordingWeightSource(InMemoryWeightSource(checkpoint()), poisoned=["attn.k.weight"])
    model = Tiny()
    load_weights(model, poisoned, MAPPING, rank=0)
    found = {name for name, param in model.named_parameters() if param.isnan().any()}
    assert found == {"attn.qkv"}


@pytest.mark.parametrize("stored", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_floats_are_cast_to_the_dtype_of_the_parameter(stored: torch.dtype) -> None:
    tensors = {name: tensor.to(stored) for name, tensor in checkpoint().items()}
    model = load(tensors)
    assert torch.equal(model.norm, tensors["norm.weight"].float())
    assert {param.dtype for param in model.parameters()} == {torch.float32}


def test_a_given_dtype_wins_over_the_parameters_own() -> None:
    tensors = checkpoint()
    model = load(tensors, dtype=torch.bfloat16)
    assert {param.dtype for param in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.norm, tensors["norm.weight"].bfloat16())


def test_a_given_dtype_leaves_integers_alone() -> None:
    model = Tiny()
    model.register_buffer("order", torch.empty(3, dtype=torch.int64, device="meta"))
    tensors = checkpoint() | {"order": torch.tensor([300, 1, 257])}  # bf16 would round these
    load(tensors, model, mapping=MAPPING.merged({"order": "order"}), dtype=torch.bfloat16)
    assert model.order.dtype == torch.int64
    assert model.order.tolist() == [300, 1, 257]


@pytest.mark.parametrize(
    "stored", [torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.complex64], ids=str
)
def test_stored_numbers_that_need_a_scale_are_not_cast(stored: torch.dtype) -> None:
    tensors = checkpoint()
    tensors["norm.weight"] = tensors["norm.weight"].to(stored)
    with pytest.raises(CheckpointError, match=rf"norm\.weight: stored as {stored}"):
        load(tensors)


def test_a_loader_may_take_a_stored_dtype_upon_itself() -> None:
    tensors = checkpoint()
    tensors["norm.weight"] = torch.arange(HIDDEN, dtype=torch.int8)
    model = Tiny()
    dequantise = WeightLoader(
        lambda slices, _: slices[0][()].float() / 2,
        stored_shapes=lambda shape: [shape],
        extra_dtypes=[torch.int8],
    )
    set_weight_loader(model.norm, dequantise)
    load(tensors, model)
    assert torch.equal(model.norm, torch.arange(HIDDEN) / 2)


def test_a_parameter_of_the_stored_dtype_needs_no_cast() -> None:
    tensors = checkpoint()
    tensors["norm.weight"] = tensors["norm.weight"].to(torch.float8_e4m3fn)
    model = Tiny()
    empty = torch.empty(HIDDEN, dtype=torch.float8_e4m3fn, device="meta")
    model.norm = nn.Parameter(empty, requires_grad=False)
    load(tensors, model)
    assert model.norm.dtype == torch.float8_e4m3fn
    assert torch.equal(model.norm.float(), tensors["norm.weight"].float())


def custom(transform) -> Tiny:
    """A model whose norm has a loader that declares nothing in advance."""
    model = Tiny()
    set_weight_loader(model.norm, WeightLoader(transform))
    return model


def test_a_custom_loader_is_given_its_slices_and_the_rank() -> None:
    tensors = checkpoint()
    model = custom(lambda slices, rank: slices[0][()] * rank)
    load(tensors, model, rank=5)
    assert torch.equal(model.norm, tensors["norm.weight"] * 5)


def test_what_a_custom_loader_makes_must_have_the_parameters_shape() -> None:
    model = custom(lambda slices, rank: slices[0][2:])
    with pytest.raises(CheckpointError, match=r"norm .*its loader made \[10\], expected \[12\]"):
        load(checkpoint(), model)
    assert model.norm.is_meta


def test_a_custom_loader_may_not_leave_its_parameter_on_meta() -> None:
    model = custom(lambda slices, rank: torch.empty(HIDDEN, device="meta"))
    with pytest.raises(CheckpointError, match=r"norm .*meta device"):
        load(checkpoint(), model)


def test_an_unforeseen_error_keeps_its_type_and_gains_the_parameter() -> None:
    def broken(slices, rank):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        load(checkpoint(), custom(broken), rank=2)
    assert caught.value.__notes__ == ["while loading parameter norm (from norm.weight) on rank 2"]


def test_shapes_cannot_be_told_for_a_loader_that_does_not_say() -> None:
    with pytest.raises(ConfigError, match="without stored_shapes: norm"):
        checkpoint_shapes(custom(lambda slices, rank: slices[0][()]), MAPPING)


def test_two_keys_for_a_parameter_that_takes_one_are_refused() -> None:
    mapping = WeightMapping(MAPPING.sources | {"norm": ("norm.weight", "mlp.down.bias")})
    with pytest.raises(CheckpointError, match=r"norm: its loader takes 1 .* gives 2: norm"):
        load(checkpoint(), mapping=mapping)


def test_one_key_may_serve_two_parameters_but_not_in_two_shapes() -> None:
    model = Tiny()
    model.other = parameter(HIDDEN)
    load(checkpoint(), model, mapping=MAPPING.merged({"other": "norm.weight"}))
    assert torch.equal(model.other, model.norm)
    model.other = parameter(HIDDEN + 1)
    with pytest.raises(CheckpointError, match=r"other: takes norm\.weight as \[13\].* as \[12\]"):
        checkpoint_shapes(model, MAPPING.merged({"other": "norm.weight"}))


def test_a_parameter_tied_before_loading_is_refused() -> None:
    model = Tiny()
    model.head = model.embed
    with pytest.raises(CheckpointError, match="embed and head: one tensor under 2 names"):
        load(checkpoint(), model, mapping=MAPPING.merged({"head": "wte.weight"}))


def test_a_loader_made_for_another_size_is_the_models_fault() -> None:
    model = Tiny()
    model.embed = parameter(VOCAB + 1, HIDDEN, loader=get_weight_loader(model.embed))
    with pytest.raises(CheckpointError, match=r"embed \[132, 12\]: .* holds 132, .* fills 131"):
        load(checkpoint(), model)
    model.embed = parameter(VOCAB, loader=gqa_qkv_weight_loader(HeadSharding(6, 2, 1), D, True))
    with pytest.raises(CheckpointError, match=r"embed \[131\]: no dimension"):
        load(checkpoint(), model)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_left_on_meta_is_an_error(persistent: bool) -> None:
    model = Tiny()
    model.attn.register_buffer("cos", torch.empty(3, device="meta"), persistent=persistent)
    with pytest.raises(CheckpointError, match=r"attn\.cos: buffer on the meta device"):
        load(checkpoint(), model)


def test_a_mapped_buffer_is_loaded_and_stays_a_buffer() -> None:
    model = Tiny()
    model.attn.register_buffer("scale", torch.empty(3, device="meta"))
    tensors = checkpoint() | {"attn.scale": torch.tensor([1.0, 2.0, 3.0])}
    load(tensors, model, mapping=MAPPING.merged({"attn.scale": "attn.scale"}))
    assert torch.equal(model.attn.scale, tensors["attn.scale"])
    assert "attn.scale" in dict(model.named_buffers())


def test_other_buffers_keep_their_values_and_stay_shared() -> None:
    model = Tiny()
    model.attn.register_buffer("table", model.table)
    load(checkpoint(), model)
    assert torch.equal(model.table, torch.arange(4.0))
    assert model.attn.table is model.table


def test_everything_moves_to_the_device() -> None:
    # Of the devices every machine has, only meta differs from the CPU.
    model = load(checkpoint(), device="meta")
    assert {t.device.type for t in [*model.parameters(), *model.buffers()]} == {"meta"}


def test_progress_counts_every_tensor() -> None:
    seen: list[tuple[int, int, str]] = []
    load(checkpoint(), progress=lambda done, total, name: seen.append((done, total, name)))
    assert [(done, total) for done, total, _ in seen] == [(i, 5) for i in range(1, 6)]
    assert {name for _, _, name in seen} == set(MAPPING.sources)


def test_a_model_can_be_loaded_again() -> None:
    model = load(checkpoint())
    other = {name: tensor + 1 for name, tensor in checkpoint().items()}
    load(other, model)
    assert torch.equal(model.mlp.down, other["mlp.down.weight"].t())


def test_a_plain_dictionary_is_a_mapping_too() -> None:
    load(checkpoint(), mapping=dict(MAPPING.sources))


def test_what_is_read_was_announced_before_but_for_the_first() -> None:
    source = RecordingWeightSource(InMemoryWeightSource(checkpoint()))
    load_weights(Tiny(3), source, MAPPING, rank=1)
    announced = [(read.name, read.box) for read in source.announced]
    missed = {(read.name, read.box) for read in source.reads} - set(announced)
    assert {name for name, _ in missed} == {"wte.weight"}
    assert len(announced) == len(set(announced))


def test_no_more_is_announced_than_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "WINDOW", 1)
    source = RecordingWeightSource(InMemoryWeightSource(checkpoint()))
    problems = Problems()
    targets = find_targets(Tiny(), MAPPING, None, problems)
    announcer = ahead.Announcer(targets, source, rank=0)
    for done in range(1, len(targets)):
        announcer.announce_after(done)
        announced = {read.name for read in source.announced}
        assert announced == {key for target in targets[1 : done + 1] for key in target.keys}


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)


@pytest.mark.usefixtures("four_threads")
def test_threads_load_the_same_and_report_in_order() -> None:
    tensors, seen = checkpoint(), []
    expected = load(tensors).state_dict()
    found = load(tensors, progress=lambda done, total, name: seen.append((done, name)))
    assert all(torch.equal(found.state_dict()[name], t) for name, t in expected.items())
    assert seen == list(enumerate(dict(found.named_parameters()), start=1))


@pytest.mark.usefixtures("four_threads")
def test_an_error_in_a_thread_ends_the_load_and_leaves_the_model() -> None:
    def broken(slices, rank):
        raise ZeroDivisionError

    model = custom(broken)
    with pytest.raises(ZeroDivisionError) as caught:
        load(checkpoint(), model)
    assert "while loading parameter norm" in caught.value.__notes__[0]
    assert all(param.is_meta for param in model.parameters())
