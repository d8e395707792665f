# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from trnport.adapters.fake.weights import RecordingWeightSource, WeightRead
from trnport.adapters.memory import InMemoryWeightSource
from trnport.core.errors import CheckpointError

TENSORS = {
    "w": torch.ones(4, 6, dtype=torch.bfloat16),
    "n": torch.arange(5),
    "m": torch.tensor([False, True]),
}


def recording(**options) -> RecordingWeightSource:
    return RecordingWeightSource(InMemoryWeightSource(TENSORS), **options)


def test_reads_are_recorded_with_their_box_and_bytes() -> None:
    source = recording()
    source.open("w")[1:3, 2:]
    source.open("n")[()]
    assert source.reads == [
        WeightRead("w", ((1, 3), (2, 6)), 2 * 4 * 2),
        WeightRead("n", ((0, 5),), 5 * 8),
    ]
    assert source.bytes_read("w") == 16
    assert source.bytes_read("m") == 0
    assert source.bytes_read() == 56
    source.clear()
    assert source.bytes_read() == 0


def test_looking_is_not_reading() -> None:
    source = recording()
    for name in source.names():
        source.info(name)
        _ = source.open(name).shape, source.open(name).dtype
    assert source.reads == []


def test_a_failing_tensor_fails_and_the_others_do_not() -> None:
    source = recording(failing=["w"])
    assert source.open("w").shape == (4, 6)
    with pytest.raises(CheckpointError, match="w: made to fail"):
        source.open("w")[()]
    assert torch.equal(source.open("n")[()], TENSORS["n"])


def test_a_poisoned_tensor_gives_poison_of_its_own_dtype() -> None:
    source = recording(poisoned=list(TENSORS))
    poison = {name: source.open(name)[()] for name in TENSORS}
    assert poison["w"].isnan().all()
    assert (poison["n"] == torch.iinfo(torch.int64).max).all()
    assert poison["m"].all()
    for name, tensor in TENSORS.items():
        assert poison[name].dtype == tensor.dtype
        assert poison[name].shape == tensor.shape


def test_no_read_is_lost_among_threads() -> None:
    source = recording()
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(source.open("w").__getitem__, slice(0, 1)) for _ in range(200)]:
            done.result()
    assert len(source.reads) == 200
