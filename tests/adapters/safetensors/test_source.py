# SPDX-License-Identifier: Apache-2.0
"""Damage and disorder in checkpoint directories: refused at once, by name, with a way out."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trnport.adapters.safetensors import SafetensorsWeightSource
from trnport.core.errors import CheckpointError

A, B, C = torch.ones(3, 2), torch.full((2, 2), 2.0), torch.full((4,), 3.0)
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"a": A, "b": B}, tmp_path / FIRST)
    save_file({"c": C}, tmp_path / SECOND)
    write_index(tmp_path, {"a": FIRST, "b": FIRST, "c": SECOND})
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def assert_refused(path: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        SafetensorsWeightSource(path)
    for word in words:
        assert word in str(caught.value)


def test_the_index_decides_and_a_stray_file_is_ignored(sharded: Path) -> None:
    save_file({"a": A * torch.nan, "d": A}, sharded / "consolidated.safetensors")
    source = SafetensorsWeightSource(sharded)
    assert source.names() == ["a", "b", "c"]
    assert torch.equal(source.open("a")[()], A)


def test_not_even_a_damaged_stray_file_is_opened(sharded: Path) -> None:
    (sharded / "stray.safetensors").write_bytes(b"nonsense")
    assert SafetensorsWeightSource(sharded).names() == ["a", "b", "c"]


def test_a_tensor_that_the_index_does_not_list_does_not_exist(sharded: Path) -> None:
    write_index(sharded, {"a": FIRST, "c": SECOND})
    assert SafetensorsWeightSource(sharded).names() == ["a", "c"]


def test_of_a_tensor_in_two_listed_files_the_index_picks_one(sharded: Path) -> None:
    save_file({"c": C, "a": A + 9}, sharded / SECOND)
    assert torch.equal(SafetensorsWeightSource(sharded).open("a")[()], A)


def test_files_below_the_directory_may_be_listed(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    save_file({"a": A}, tmp_path / "part" / FIRST)
    write_index(tmp_path, {"a": f"part/{FIRST}"})
    assert torch.equal(SafetensorsWeightSource(tmp_path).open("a")[()], A)


def test_a_listed_file_that_is_not_there(sharded: Path) -> None:
    (sharded / SECOND).unlink()
    assert_refused(sharded, INDEX, SECOND, "download")


def test_a_listed_tensor_that_is_not_in_its_file(sharded: Path) -> None:
    write_index(sharded, {"a": FIRST, "c": FIRST, "e": SECOND})
    assert_refused(sharded, str(sharded / FIRST), "lacks", " c;")


@pytest.mark.parametrize("file", ["../x.safetensors", "/x.safetensors", "a/../../x", ""])
def test_an_index_may_not_point_out_of_its_directory(sharded: Path, file: str) -> None:
    write_index(sharded, {"a": file})
    assert_refused(sharded, INDEX, "not inside its directory")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"{", "JSON"),
        (b"", "JSON"),
        (b"\x80\xff", "JSON"),
        (b"[]", "weight_map"),
        (b"{}", "weight_map"),
        (b'{"weight_map": []}', "weight_map"),
        (b'{"weight_map": {}}', "weight_map"),
        (b'{"weight_map": {"a": 3}}', "file of a"),
    ],
)
def test_a_damaged_index(sharded: Path, content: bytes, word: str) -> None:
    (sharded / INDEX).write_bytes(content)
    assert_refused(sharded, INDEX, word)


def test_without_an_index_all_files_count(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    (sharded / "._model.safetensors").write_bytes(b"left by a file manager")
    assert SafetensorsWeightSource(sharded).names() == ["a", "b", "c"]


def test_without_an_index_a_tensor_in_two_files_is_an_error(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    save_file({"b": B}, sharded / "other.safetensors")
    assert_refused(sharded, "b is in both", FIRST, "other.safetensors")


@pytest.mark.parametrize("kept", [0, 4, 8, 40, 100, -1], ids=str)
def test_a_truncated_file(sharded: Path, kept: int) -> None:
    file = sharded / FIRST
    content = file.read_bytes()
    assert len(content) > 100
    file.write_bytes(content[:kept])
    assert_refused(sharded, str(file), "damaged", "download it again")


def test_a_file_with_a_tail(sharded: Path) -> None:
    file = sharded / SECOND
    file.write_bytes(file.read_bytes() + b"\0")
    assert_refused(sharded, str(file), "damaged")


def test_a_header_that_is_not_json(sharded: Path) -> None:
    file = sharded / SECOND
    content = bytearray(file.read_bytes())
    content[8] = ord("x")
    file.write_bytes(content)
    assert_refused(sharded, str(file), "damaged")


def test_damage_in_any_file_is_found_before_anything_is_loaded(sharded: Path) -> None:
    (sharded / SECOND).write_bytes((sharded / SECOND).read_bytes()[:-4])
    assert_refused(sharded, SECOND)


def test_a_git_lfs_pointer_is_recognised(sharded: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    (sharded / FIRST).write_bytes(pointer)
    assert_refused(sharded, FIRST, "git lfs pull")


def test_weights_in_another_format_only(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "config.json").write_text("{}")
    assert_refused(tmp_path, str(tmp_path), "only pytorch_model.bin", "convert")


def test_no_weights_at_all(tmp_path: Path) -> None:
    assert_refused(tmp_path, str(tmp_path), "no *.safetensors", "download complete?")


def test_a_file_without_tensors(tmp_path: Path) -> None:
    save_file({}, tmp_path / "model.safetensors")
    assert_refused(tmp_path, "no tensors")


def test_nothing_there(tmp_path: Path) -> None:
    assert_refused(tmp_path / "org" / "model", "does not exist", "download")


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert_refused(file, "model.gguf", "not a .safetensors file")


def test_a_dtype_that_torch_lacks_is_named(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F4", "shape": [2, 2], "data_offsets": [0, 2]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    assert_refused(file, "model.safetensors", "w has dtype F4")


def test_a_read_survives_the_removal_of_the_file(sharded: Path) -> None:
    source = SafetensorsWeightSource(sharded)
    read = source.open("a")[()]
    (sharded / FIRST).write_bytes(b"")
    assert torch.equal(read, A)
