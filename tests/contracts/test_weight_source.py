# SPDX-License-Identifier: Apache-2.0
"""What every WeightSource must do. A new adapter joins by one entry in SOURCES."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from trnport.adapters.fake.weights import RecordingWeightSource
from trnport.adapters.memory import InMemoryWeightSource, RandomWeightSource
from trnport.adapters.safetensors import SafetensorsWeightSource
from trnport.core.ports import WeightSource


@attrs.frozen(eq=False)
class Case:
    """A source, and the tensors that it must give."""

    source: WeightSource
    tensors: dict[str, Tensor]


def made_up() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "norm.weight": torch.randn(7),
        "a.matrix": torch.randn(5, 6, dtype=torch.bfloat16),
        "b.transposed": torch.randn(6, 5).t().contiguous(),
        "experts": torch.randn(3, 4, 5, dtype=torch.float16),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "packed": torch.arange(24, dtype=torch.uint8).reshape(4, 6),
        "mask": torch.tensor([True, False, True]),
        "float8": torch.randn(4, 3).to(torch.float8_e4m3fn),
        "position_ids": torch.arange(9),
    }


def single_file(folder: Path) -> Case:
    tensors = made_up()
    save_file(tensors, folder / "weights.safetensors")
    return Case(SafetensorsWeightSource(folder / "weights.safetensors"), tensors)


def directory(folder: Path) -> Case:
    tensors = made_up()
    save_file(tensors, folder / "model.safetensors")
    return Case(SafetensorsWeightSource(folder), tensors)


def sharded_with_index(folder: Path) -> Case:
    tensors = made_up()
    files: dict[str, str] = {}
    for i, name in enumerate(tensors):
        files[name] = f"model-{i % 3 + 1:05}-of-00003.safetensors"
    for file in set(files.values()):
        save_file({n: t for n, t in tensors.items() if files[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return Case(SafetensorsWeightSource(folder), tensors)


def in_memory(folder: Path) -> Case:
    tensors = made_up()
    tensors["b.transposed"] = tensors["b.transposed"].t().contiguous().t()
    return Case(InMemoryWeightSource(tensors), tensors)


def random(folder: Path) -> Case:
    shapes = {name: tuple(tensor.shape) for name, tensor in made_up().items()}
    other = RandomWeightSource(shapes, seed=3, dtype=torch.bfloat16)
    # Read in reverse from another instance: neither may matter.
    tensors = {name: other.open(name)[()] for name in reversed(other.names())}
    return Case(RandomWeightSource(shapes, seed=3, dtype=torch.bfloat16), tensors)


def recording(folder: Path) -> Case:
    tensors = made_up()
    return Case(RecordingWeightSource(InMemoryWeightSource(tensors)), tensors)


SOURCES: list[Callable[[Path], Case]] = [
    single_file,
    directory,
    sharded_with_index,
    in_memory,
    random,
    recording,
]


@pytest.fixture(scope="module", params=SOURCES, ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return request.param(tmp_path_factory.mktemp("weights"))


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    # float8 compares only after a cast, which is exact.
    assert torch.equal(actual.to(torch.float64), expected.to(torch.float64))


def test_names_are_sorted_and_complete(case: Case) -> None:
    assert list(case.source.names()) == sorted(case.tensors)


def test_info_and_view_describe_the_tensor(case: Case) -> None:
    for name, tensor in case.tensors.items():
        for described in (case.source.info(name), case.source.open(name)):
            assert described.shape == tuple(tensor.shape)
            assert isinstance(described.shape, tuple)
            assert described.dtype == tensor.dtype


def test_the_empty_index_reads_the_whole_tensor(case: Case) -> None:
    for name, tensor in case.tensors.items():
        assert_same(case.source.open(name)[()], tensor)


def test_one_slice_need_not_be_a_tuple(case: Case) -> None:
    assert_same(case.source.open("a.matrix")[1:3], case.tensors["a.matrix"][1:3])
    assert_same(case.source.open("a.matrix")[:], case.tensors["a.matrix"])


def boxes(data: st.DataObject, shape: torch.Size) -> tuple[slice, ...]:
    box = []
    for size in shape[: data.draw(st.integers(0, len(shape)))]:
        start = data.draw(st.integers(0, size))
        box.append(slice(start, data.draw(st.integers(start, size))))
    return tuple(box)


@given(data=st.data())
def test_a_slice_equals_the_slice_of_the_whole(case: Case, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(case.tensors)))
    tensor = case.tensors[name]
    box = boxes(data, tensor.shape)
    case.source.open(name).announce(box)
    assert_same(case.source.open(name)[box], tensor[box])


@given(data=st.data(), transposed=st.booleans(), dtype=st.sampled_from([None, torch.float32]))
def test_a_box_can_be_read_into_a_part_of_a_larger_tensor(
    case: Case, data: st.DataObject, transposed: bool, dtype: torch.dtype | None
) -> None:
    name = data.draw(st.sampled_from(sorted(case.tensors)))
    tensor = case.tensors[name]
    box = boxes(data, tensor.shape)
    expected = tensor[box].to(dtype or tensor.dtype)
    shape = [size + 2 for size in expected.shape]
    swapped = transposed and len(shape) > 1
    if swapped:
        shape[-2:] = reversed(shape[-2:])
    around = torch.zeros(shape, dtype=expected.dtype)
    inner = around.mT if swapped else around
    out = inner[tuple(slice(1, 1 + size) for size in expected.shape)]
    case.source.open(name).read_into(box, out)
    assert_same(out, expected)
    # Cast, since float8 cannot be summed; every entry outside the box is still zero.
    entries = around.to(torch.float64)
    assert entries.count_nonzero() == expected.to(torch.float64).count_nonzero()


def test_a_read_belongs_to_the_caller(case: Case) -> None:
    for name in ("a.matrix", "norm.weight", "b.transposed"):
        for index in ((), slice(1, 3)):
            read = case.source.open(name)[index]
            before = read.clone()
            assert read.is_contiguous()
            read.fill_(77)
            assert_same(case.source.open(name)[index], before)


def test_an_unknown_name_is_a_key_error_that_names_it(case: Case) -> None:
    for ask in (case.source.info, case.source.open):
        with pytest.raises(KeyError, match=r"a\.matrixx.*nearest: a\.matrix\b"):
            ask("a.matrixx")


@pytest.mark.parametrize(
    "index",
    [
        slice(0, 6),
        slice(5, 6),
        slice(-1, None),
        slice(3, 2),
        slice(0, 5, 2),
        (slice(0, 5), slice(0, 7)),
        (slice(0, 5), slice(0, 6), slice(0, 1)),
        (0, slice(0, 6)),
        2,
        ...,
    ],
    ids=str,
)
def test_an_index_outside_the_tensor_is_an_error_and_never_clamped(
    case: Case, index: slice
) -> None:
    assert tuple(case.source.info("a.matrix").shape) == (5, 6)
    view = case.source.open("a.matrix")
    with pytest.raises(IndexError):
        view[index]
    with pytest.raises(IndexError):
        view.read_into(index, torch.empty(5, 6))


def test_several_threads_may_read(case: Case) -> None:
    def read(turn: int) -> None:
        for name in sorted(case.tensors, reverse=bool(turn % 2)):
            assert_same(case.source.open(name)[()], case.tensors[name])

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(read, turn) for turn in range(16)]:
            done.result()


def test_the_cases_hold_no_nan_that_would_make_comparison_vacuous(case: Case) -> None:
    assert all(math.isfinite(t.to(torch.float64).sum().item()) for t in case.tensors.values())
    assert any(t.to(torch.float64).abs().sum() > 0 for t in case.tensors.values())
