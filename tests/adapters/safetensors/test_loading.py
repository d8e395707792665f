# SPDX-License-Identifier: Apache-2.0
"""A whole rank from mapped files: whose pages it touches, and how much memory that takes."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trnport.adapters.safetensors import SafetensorsWeightSource, mapped
from trnport.core.errors import CheckpointError

ROWS, ROW = 8192, 4096
"""A matrix of 32 MiB in uint8, whose rows are pages."""

RANK = textwrap.dedent("""
    import ctypes, json, mmap, sys
    from pathlib import Path

    import torch
    from torch import nn

    from trnport.adapters.safetensors import SafetensorsWeightSource
    from trnport.core.weights import (
        WeightLoader, load_weights, set_weight_loader, sharding_weight_loader,
    )

    torch.set_num_threads(1)
    folder, rank, tp, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    source = SafetensorsWeightSource(folder)
    model = nn.Module()
    for name in source.names():
        rows, columns = source.info(name).shape
        loader = sharding_weight_loader(1, rows // tp, tp, is_storage_transposed=True)
        if mode == "copies":
            loader = WeightLoader(lambda slices, _: slices[0][()].mT.contiguous())
        param = torch.empty(columns, rows // tp, dtype=torch.uint8, device="meta")
        param = nn.Parameter(param, requires_grad=False)
        set_weight_loader(param, loader)
        model.register_parameter(name, param)

    def forbid_the_pages_of_others():
        for name in source.names():
            view = source.open(name)
            share = view.shape[0] // tp * view.shape[1]
            start = view.file._bytes.data_ptr() + view.start
            for other in set(range(tp)) - {rank if mode == "own" else rank - 1}:
                first = -(-(start + other * share) // mmap.PAGESIZE) * mmap.PAGESIZE
                last = (start + (other + 1) * share) // mmap.PAGESIZE * mmap.PAGESIZE
                assert last > first and libc.mprotect(first, last - first, 0) == 0

    def memory(field):
        return int(Path("/proc/self/status").read_text().split(field)[1].split()[0]) * 1024

    libc = ctypes.CDLL(None)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if mode in {"own", "others"}:
        forbid_the_pages_of_others()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS:")
    load_weights(model, source, {name: name for name in source.names()}, rank=rank)
    extra = memory("VmHWM:") - before - sum(param.nbytes for param in model.parameters())
    sums = [int(param.sum()) for param in model.parameters()]
    print(json.dumps({"extra": extra, "sums": sums}))
""")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    generator = torch.Generator().manual_seed(0)
    for name in "ab":
        matrix = torch.randint(0, 200, (ROWS, ROW), generator=generator, dtype=torch.uint8)
        save_file({name: matrix}, folder / f"{name}.safetensors")
    return folder


def run_rank(folder: Path, rank: int, tp: int, mode: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RANK, str(folder), str(rank), str(tp), mode]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_rank_touches_no_page_of_another(checkpoint: Path) -> None:
    done = run_rank(checkpoint, 1, 4, "own")
    assert done.returncode == 0, done.stderr
    source = SafetensorsWeightSource(checkpoint)
    share = ROWS // 4
    expected = [int(source.open(name)[share : 2 * share].sum()) for name in source.names()]
    assert json.loads(done.stdout)["sums"] == expected


def test_touching_a_page_of_another_would_end_the_process(checkpoint: Path) -> None:
    assert run_rank(checkpoint, 1, 4, "others").returncode == -signal.SIGSEGV


@pytest.mark.slow
def test_loading_takes_the_memory_of_the_weights_and_less_than_a_tensor(checkpoint: Path) -> None:
    done = run_rank(checkpoint, 0, 1, "new")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["extra"] < ROWS * ROW / 2
    # The measurement notices a copy: a loader that makes one takes a tensor more.
    assert json.loads(run_rank(checkpoint, 0, 1, "copies").stdout)["extra"] > ROWS * ROW / 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_tensors_of_many_blocks_and_tiles(tmp_path: Path, dtype: torch.dtype) -> None:
    rows, columns = 2 * mapped.TILE[0] + 3, 2 * mapped.TILE[1] + 5
    tensors = {
        "matrix": torch.randn(rows, columns).bfloat16(),
        "vector": torch.randn(2 * mapped.BLOCK + 7).bfloat16(),
        "experts": torch.randn(3, rows, columns).bfloat16(),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    source = SafetensorsWeightSource(tmp_path)
    for name, tensor in tensors.items():
        assert torch.equal(source.open(name)[()], tensor)
        swapped = torch.zeros(*tensor.shape[:-2], *tensor.shape[:-3:-1], dtype=dtype)
        out = swapped if tensor.dim() == 1 else swapped.mT
        source.open(name).read_into((), out)
        assert torch.equal(out, tensor.to(dtype))
    part = torch.zeros(columns, 7)
    source.open("matrix").read_into(slice(rows - 7, rows), part.t())
    assert torch.equal(part, tensors["matrix"][rows - 7 :].t().float())


def test_a_box_that_does_not_fill_its_place_is_an_error(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(3, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="w: a box"):
        SafetensorsWeightSource(tmp_path).open("w").read_into((), torch.empty(4))


def test_a_tensor_at_an_odd_byte(tmp_path: Path) -> None:
    layout = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [1, 25]},
    }
    header = json.dumps(layout).encode()
    data = torch.arange(6.0)
    content = struct.pack("<Q", len(header)) + header + b"\7" + data.numpy().tobytes()
    (tmp_path / "model.safetensors").write_bytes(content)
    source = SafetensorsWeightSource(tmp_path)
    source.open("w").announce(slice(1, 2))
    assert torch.equal(source.open("w")[1:], data.view(2, 3)[1:])


def test_a_file_cut_short_after_it_was_opened_is_an_error_and_no_crash(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(64, 4096)}, file)
    source = SafetensorsWeightSource(tmp_path)
    with file.open("r+b") as stream:
        stream.truncate(4096)
    with pytest.raises(CheckpointError, match=r"model\.safetensors has become shorter"):
        source.open("w")[()]
