# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from trnport.adapters.memory import RandomWeightSource

SHAPES = {"b.norm.weight": (400,), "a.weight": (50, 40), "c.weight": (50, 40)}


def test_another_seed_or_name_gives_other_numbers() -> None:
    first, second = RandomWeightSource(SHAPES, seed=0), RandomWeightSource(SHAPES, seed=1)
    assert not torch.equal(first.open("a.weight")[()], second.open("a.weight")[()])
    assert not torch.equal(first.open("a.weight")[()], first.open("c.weight")[()])


def test_a_tensor_does_not_depend_on_its_neighbours() -> None:
    alone = RandomWeightSource({"c.weight": (50, 40)}, seed=0)
    among = RandomWeightSource(SHAPES, seed=0)
    assert torch.equal(alone.open("c.weight")[()], among.open("c.weight")[()])


def test_the_global_generator_is_neither_used_nor_moved() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = RandomWeightSource(SHAPES).open("a.weight")[()]
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(RandomWeightSource(SHAPES).open("a.weight")[()], first)


def test_mean_and_deviation_are_as_asked() -> None:
    source = RandomWeightSource(
        SHAPES, std=0.1, mean=lambda name: float(name.endswith("norm.weight"))
    )
    assert source.open("b.norm.weight")[()].mean().item() == pytest.approx(1, abs=0.02)
    assert source.open("a.weight")[()].mean().item() == pytest.approx(0, abs=0.01)
    assert source.open("a.weight")[()].std().item() == pytest.approx(0.1, rel=0.1)


def test_a_dtype_rounds_the_same_draw() -> None:
    exact = RandomWeightSource(SHAPES).open("a.weight")[()]
    rounded = RandomWeightSource(SHAPES, dtype=torch.bfloat16).open("a.weight")[()]
    assert torch.equal(rounded, exact.bfloat16())


def test_another_process_draws_the_same() -> None:
    here = RandomWeightSource(SHAPES, seed=9).open("a.weight")[:1].flatten().tolist()
    program = (
        "from trnport.adapters.memory import RandomWeightSource as R\n"
        f"print(R({SHAPES!r}, seed=9).open('a.weight')[:1].flatten().tolist())"
    )
    there = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == str(here)
