# SPDX-License-Identifier: Apache-2.0
"""A whole engine whose programs sample."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.zoo import save_llama
from trnport import bootstrap
from trnport.adapters.local import LocalWorld
from trnport.core.engine.sampling import SamplingParams
from trnport.core.engine.session import Session
from trnport.core.engine.streams import RandomStreams, random_keys
from trnport.core.errors import RequestError
from trnport.core.functional.random import mix, signed, split

CHANCE = random.Random(0)
PROMPTS = [[CHANCE.randrange(3, 131) for _ in range(n)] for n in (1, 20, 7, 33, 5)]
SAMPLED = SamplingParams(temperature=1.2, top_k=40, top_p=0.9, seed=11)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_llama(path)
    return path


def session(folder: Path, on_device: dict[str, Any] | None, **options: Any) -> Session:
    return bootstrap.open_session(
        folder,
        dtype=torch.float32,
        max_model_len=48,
        max_num_seqs=3,
        max_num_batched_tokens=16,
        block_size=4,
        neuron_config={"on_device_sampling_config": on_device},
        **options,
    )


@pytest.mark.parametrize("on_device", [{}, {"all_greedy": True}])
def test_greedy_tokens_are_the_hosts(folder: Path, on_device: dict[str, Any]) -> None:
    expected = session(folder, None).generate(PROMPTS, max_tokens=10)
    assert session(folder, on_device).generate(PROMPTS, max_tokens=10) == expected


def test_ranks_and_neighbours_change_no_draw(folder: Path) -> None:
    alone = session(folder, {})
    expected = [alone.generate([prompt], SAMPLED, max_tokens=10)[0] for prompt in PROMPTS]
    assert len({token for tokens in expected for token in tokens}) > 15
    assert session(folder, {}).generate(PROMPTS, SAMPLED, max_tokens=10) == expected

    def on_rank(collectives: Any) -> list[list[int]]:
        engine = session(folder, {}, collectives=collectives)
        return engine.generate(PROMPTS, SAMPLED, max_tokens=10)

    assert LocalWorld(3).run(on_rank) == [expected] * 3


def test_an_all_greedy_engine_refuses_to_draw(folder: Path) -> None:
    engine = session(folder, {"all_greedy": True})
    with pytest.raises(RequestError, match=r"temperature=1.2.*all greedy.*use 0"):
        engine.add([5], SAMPLED)
    assert engine.generate([[5]], max_tokens=2)


def test_the_configured_defaults_apply(folder: Path) -> None:
    defaults = {"temperature": 1.2, "top_k": 40, "top_p": 0.9}
    engine = session(folder, defaults)
    draws = {tuple(engine.generate([[5, 6]], max_tokens=8)[0]) for _ in range(4)}
    assert len(draws) > 1, "unseeded requests draw anew"


def test_streams_follow_seeds_and_arrival() -> None:
    first, second = RandomStreams(0), RandomStreams(0)
    drawn = [first.stream(None), first.stream(5), first.stream(None), first.stream(-5)]
    assert drawn == [second.stream(None), second.stream(5), second.stream(None), second.stream(-5)]
    assert first.stream(5) == drawn[1]
    assert RandomStreams(1).stream(None) != drawn[0]
    assert len(set(drawn)) == 4
    pairs = [(stream, count) for stream in drawn for count in range(100)]
    streams, counts = torch.tensor([(signed(stream), count) for stream, count in pairs]).T
    keys = random_keys(streams, counts).tolist()
    assert keys == [signed(mix(split(stream, count))) for stream, count in pairs]
    assert len(set(keys)) == 400
