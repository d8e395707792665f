# SPDX-License-Identifier: Apache-2.0
"""Three-way accuracy: our kernels and plain torch in bf16, each against fp64 on the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.contracts.oracles import PagedBatch, attend
from trnport.adapters.nki.adapter import NkiKernels
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.ports import Kernels

FACTOR = 1.1
"""Times torch's error that a kernel may err; it rounds less often, so 1 is nearly enough."""

ULP = 2.0**-8
"""Half a bf16 step at the largest expected magnitude, which no implementation can avoid."""

TOKENS = 131
HIDDEN = 200


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def products() -> list[Tensor]:
    shapes = [(TOKENS, HIDDEN), (HIDDEN, 300), (HIDDEN, 300), (300, HIDDEN)]
    scales = [1.0, HIDDEN**-0.5, HIDDEN**-0.5, 300**-0.5]
    return [
        normal(*shape, seed=i) * s for i, (shape, s) in enumerate(zip(shapes, scales, strict=True))
    ]


def case_rms_norm(kernels: Kernels) -> tuple[Tensor, Tensor]:
    x, weight = normal(TOKENS, HIDDEN), normal(HIDDEN, seed=1)
    wide = x.double()
    truth = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    return kernels.rms_norm(x, weight, 1e-5), truth


def case_rope(kernels: Kernels) -> tuple[Tensor, Tensor]:
    q, k = normal(TOKENS, 9, 64), normal(TOKENS, 3, 64, seed=1)
    angle = torch.rand(TOKENS, 32, generator=torch.Generator().manual_seed(2)) * 6
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    first, second = q.double().chunk(2, -1)
    c, s = cos.double()[:, None], sin.double()[:, None]
    truth = torch.cat([first * c - second * s, second * c + first * s], -1)
    return kernels.rope(q, k, cos, sin)[0], truth


def case_linear(kernels: Kernels) -> tuple[Tensor, Tensor]:
    x, weight, _, _ = products()
    bias = normal(300, seed=9)
    return kernels.linear(x, weight, bias), x.double() @ weight.double() + bias.double()


def case_mlp(kernels: Kernels) -> tuple[Tensor, Tensor]:
    x, gate, up, down = products()
    wide = [t.double() for t in (x, gate, up, down)]
    truth = (F.silu(wide[0] @ wide[1]) * (wide[0] @ wide[2])) @ wide[3]
    return kernels.mlp(x, gate, up, down), truth


def case_prefill(kernels: Kernels) -> tuple[Tensor, Tensor]:
    q, k, v = normal(TOKENS, 6, 64), normal(TOKENS, 2, 64, seed=1), normal(TOKENS, 2, 64, seed=2)
    valid, places = torch.ones(TOKENS, dtype=torch.bool), list(range(TOKENS))
    got = kernels.prefill_attention(q, k, v, valid, scale=0.125)
    return got, torch.from_numpy(attend(q, k, v, places, places, 0.125))


def case_decode(kernels: Kernels) -> tuple[Tensor, Tensor]:
    lengths = [600, 7]
    batch = PagedBatch.random(lengths, kv_heads=2, head_dim=64, block_size=16, dtype=torch.bfloat16)
    q = normal(2, 6, 64)
    positions = torch.tensor(lengths, dtype=torch.int32) - 1
    got = kernels.decode_attention(
        q, batch.k_cache, batch.v_cache, batch.block_table, positions, scale=0.125
    )
    rows = [
        attend(q[i : i + 1], batch.keys[i], batch.values[i], [n - 1], list(range(n)), 0.125)
        for i, n in enumerate(lengths)
    ]
    return got, torch.cat([torch.from_numpy(row) for row in rows])


CASES: dict[str, Callable[[Kernels], tuple[Tensor, Tensor]]] = {
    name.removeprefix("case_"): function
    for name, function in dict(globals()).items()
    if name.startswith("case_")
}


def error(case: Callable[[Kernels], tuple[Tensor, Tensor]], kernels: Any) -> tuple[float, float]:
    """Root-mean-square and largest error, both relative to the largest magnitude of the truth."""
    got, truth = case(kernels)
    assert got.dtype == torch.bfloat16
    difference = (got.double() - truth) / truth.abs().max()
    return difference.square().mean().sqrt().item(), difference.abs().max().item()


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_errs_no_more_than_torch_in_bf16(name: str) -> None:
    ours = error(CASES[name], NkiKernels(TorchCpuKernels(), strict=True))
    theirs = error(CASES[name], TorchCpuKernels())
    assert ours[0] <= FACTOR * theirs[0]
    assert ours[1] <= FACTOR * theirs[1] + ULP


@pytest.mark.parametrize("name", CASES)
def test_in_precise_mode_only_the_final_cast_is_left(name: str) -> None:
    """fp32 storage tells errors of logic from rounding: what remains is the cast to bf16."""
    got, truth = CASES[name](NkiKernels(TorchCpuKernels(), precise=True, strict=True))
    nearest = (truth.bfloat16().double() - truth).square().mean().sqrt()
    assert (got.double() - truth).square().mean().sqrt() <= 1.05 * nearest
