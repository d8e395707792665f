# SPDX-License-Identifier: Apache-2.0
"""Sizes and values at the edge of a tile, a chunk or a number format."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.contracts.oracles import assert_close
from trnport.adapters.nki.adapter import NkiKernels
from trnport.adapters.torch_cpu import TorchCpuKernels

REFERENCE = TorchCpuKernels()
NKI = NkiKernels(REFERENCE, strict=True)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("tokens", "window"),
    [
        (513, None),  # the last query alone sees a key of the second chunk, its own
        (641, 130),  # the last query sees one key of the first chunk, 511
        (641, 129),  # and none of it
    ],
)
def test_chunks_of_which_one_key_is_seen(tokens: int, window: int | None) -> None:
    q, k, v = (normal(tokens, 1, 4, seed=seed) for seed in range(3))
    valid = torch.ones(tokens, dtype=torch.bool)
    got, want = (
        kernels.prefill_attention(q, k, v, valid, scale=0.5, sliding_window=window)
        for kernels in (NKI, REFERENCE)
    )
    assert_close(got, want)


def test_low_scores_after_high_ones_do_not_overflow() -> None:
    """The exponential of the fall from one chunk's maximum to the next one's is infinite."""
    tokens = 520
    q, v = torch.ones(tokens, 1, 4), normal(tokens, 1, 4)
    k = torch.full((tokens, 1, 4), 50.0)
    k[512:] = -50.0
    valid = torch.ones(tokens, dtype=torch.bool)
    got = NKI.prefill_attention(q, k, v, valid, scale=1.0)
    assert_close(got[-1, 0], v[:512, 0].mean(0))
