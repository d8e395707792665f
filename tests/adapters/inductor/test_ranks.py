# SPDX-License-Identifier: Apache-2.0
"""Compiled programs of ranks that are processes: same tokens, kept order, shared by replicas."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.contracts.processes import GlooWorld
from tests.harness import make_rig, relative_error
from tests.zoo import save_llama
from trnport import bootstrap
from trnport.adapters.distributed import DistributedCollectives, ops
from trnport.adapters.inductor import InductorCompiler, identity
from trnport.adapters.local import LocalWorld
from trnport.adapters.program_cache import ProgramCache
from trnport.core.config import NeuronConfig
from trnport.core.errors import ConfigError
from trnport.core.ports import Collectives

BUCKETS = {"num_batched_tokens_buckets": [24], "num_seqs_buckets": [2]}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
FORCED = [8, 9, 7]


def both_ways(collectives: Collectives, folder: Path, programs: Path) -> tuple[Any, ...]:
    """On one rank: logits of eager programs and of compiled ones, and what was compiled."""
    compiler = InductorCompiler(ProgramCache(programs))
    logits = [
        make_rig(
            folder,
            neuron_config={**BUCKETS, "enable_prompt_logprobs": False},
            max_model_len=24,
            max_num_seqs=2,
            collectives=collectives,
            compiler=chosen,
        ).teacher_forced(PROMPT, FORCED)
        for chosen in (None, compiler)
    ]
    return *logits, compiler.num_cached, compiler.num_compiled


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "tp"), [("awkward", 3), ("eight_heads", 4)])
def test_ranks_compute_what_they_do_eagerly(tmp_path: Path, name: str, tp: int) -> None:
    save_llama(tmp_path / "model", name, num_hidden_layers=4)
    world = GlooWorld(tp, seconds=300)
    run = partial(both_ways, folder=tmp_path / "model", programs=tmp_path / "programs")
    (first, *_), *_ = cold = world.run(run)
    for eager, compiled, cached, made in cold:
        assert relative_error(compiled, eager) < 1e-5
        assert torch.equal(compiled.argmax(-1), first.argmax(-1))
        assert (cached, made) == (0, 2)  # each rank knows its part of the vocabulary
    for (_, compiled, cached, made), (_, before, *_) in zip(world.run(run), cold, strict=True):
        assert torch.equal(compiled, before)
        assert (cached, made) == (2, 0)


# --- keys ----------------------------------------------------------------------------------------


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[None]:
    """Torch's process groups, of which this process is the only member."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def rank_of(place: tuple[int, int]) -> Collectives:
    """A rank among others that do not exist."""
    collectives = DistributedCollectives({})
    collectives._places = {"tp": place}
    return collectives


def key_of(folder: Path, collectives: Collectives) -> str | None:
    limits = {"max_model_len": 24, "max_num_seqs": 2, "max_num_batched_tokens": 24}
    model = bootstrap.build_model(
        bootstrap.read_hf_config(folder),
        NeuronConfig.from_dict(BUCKETS, **limits),
        dtype=torch.float32,
        collectives=collectives,
    )
    return identity.identity(model)


def test_replicas_share_programs_and_ranks_do_not(tmp_path: Path, groups: None) -> None:
    save_llama(tmp_path / "model", "awkward", num_hidden_layers=1)
    group = dist.new_group([0])
    one = key_of(tmp_path / "model", DistributedCollectives({"tp": group}))
    dist.destroy_process_group(group)
    other = dist.new_group([0])
    assert other.group_name != group.group_name
    assert key_of(tmp_path / "model", DistributedCollectives({"tp": other})) == one
    places = [(0, 1), (0, 3), (1, 3), (2, 3)]
    keys = [key_of(tmp_path / "model", rank_of(place)) for place in places]
    assert keys[0] == one and None not in keys
    assert len(set(keys)) == len(places)


def test_a_process_has_one_group_of_a_name(groups: None) -> None:
    group = dist.new_group([0])
    DistributedCollectives({"tp": group})
    DistributedCollectives({"tp": group})
    with pytest.raises(ConfigError, match="another group 'tp'"):
        DistributedCollectives({"tp": dist.new_group([0])})
    assert ops.group_called("tp") is group


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_collectives_keep_their_order_and_none_is_left_out(
    tmp_path: Path, groups: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks whose programs differ would otherwise wait for each other for ever."""
    called: list[tuple[int, ...]] = []
    original = dist.all_reduce

    def recorded(x: Tensor, **options: Any) -> None:
        called.append(tuple(x.shape))
        original(x, **options)

    monkeypatch.setattr(dist, "all_reduce", recorded)
    tp = DistributedCollectives({"tp": dist.new_group([0])})

    def step(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        late = tp.all_reduce(z + 1, "tp")
        tp.all_reduce(x, "tp")
        middle = tp.all_reduce(y * 2, "tp")
        return tp.all_reduce(x - 1, "tp") + middle.sum(), late

    args = (torch.ones(2), torch.ones(3), torch.ones(4))
    program = InductorCompiler(ProgramCache(tmp_path)).compile("step", step, args)
    first, late = program(*args)
    assert called == [(4,), (2,), (3,), (2,)]
    assert first.tolist() == [6, 6] and late.tolist() == [2, 2, 2, 2]


# --- refusals ------------------------------------------------------------------------------------


def test_ranks_that_are_threads_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_llama(tmp_path, "awkward", num_hidden_layers=1)
    monkeypatch.setattr(bootstrap, "weight_source", lambda path: pytest.fail("read weights"))
    rank = LocalWorld(2).ranks[0]
    with pytest.raises(ConfigError, match=r"'inductor'.*LocalCollectives.*process.*'eager'"):
        bootstrap.open_session(tmp_path, neuron_config={"compiler": "inductor"}, collectives=rank)
