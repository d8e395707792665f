# SPDX-License-Identifier: Apache-2.0
"""Bytes that kernels read from HBM: at decode, each weight once, half of it on each core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trnport.adapters.nki.kernels.mlp import mlp
from trnport.adapters.nki.kernels.moe import moe_all_experts
from trnport.adapters.nki.kernels.projection import linear
from trnport.adapters.nki.nki import REAL, nki

pytestmark = pytest.mark.skipif(REAL, reason="the SDK's simulator counts nothing")

TOKENS, HIDDEN, INNER, EXPERTS = 4, 1024, 2048, 2


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


X = zeros(TOKENS, HIDDEN)
WIDE, BACK = (HIDDEN, INNER), (INNER, HIDDEN)
NO_BIASES = (None, None, None)

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Tensor, ...]]] = {
    "linear": (linear, (X, zeros(*WIDE), None, False), (zeros(*WIDE),)),
    "mlp": (
        mlp,
        (X, zeros(*WIDE), zeros(*WIDE), zeros(*BACK), *NO_BIASES, False, False, False),
        (zeros(*WIDE), zeros(*WIDE), zeros(*BACK)),
    ),
    "moe": (
        moe_all_experts,
        (
            X,
            torch.zeros(TOKENS, EXPERTS),
            *[zeros(EXPERTS, *WIDE)] * 2,
            zeros(EXPERTS, *BACK),
            *NO_BIASES,
            False,
            0.0,
            1.0,
        ),
        (zeros(EXPERTS, *WIDE), zeros(EXPERTS, *WIDE), zeros(EXPERTS, *BACK)),
    ),
}


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_weights_are_read_once_and_shared_between_cores(name: str, lnc: int) -> None:
    kernel, arguments, weights = CALLS[name]
    simulation = nki.simulate(kernel, target="trn2", lnc=lnc)
    simulation(*arguments)
    share = sum(weight.nbytes for weight in weights) / lnc
    for counters in simulation.counters:
        read = counters.dma_bytes["hbm", "sbuf"]
        assert share <= read <= 1.05 * share
