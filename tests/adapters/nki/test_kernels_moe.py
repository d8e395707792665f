# SPDX-License-Identifier: Apache-2.0
"""Router and mixture of experts against plain torch; the port has no such operators yet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trnport.adapters.nki.execute import Machine, run
from trnport.adapters.nki.kernels.moe import moe_all_experts
from trnport.adapters.nki.kernels.norm import add_rms_norm
from trnport.adapters.nki.kernels.router import router_top_k


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def machine(lnc: int = 1) -> str:
    return Machine(lnc=lnc).key


def ranked(logits: Tensor, k: int) -> Tensor:
    """The k largest by value, then by index, in plain Python."""
    return torch.tensor(
        [
            sorted(range(len(row)), key=lambda i, row=row: (-row[i], i))[:k]
            for row in logits.tolist()
        ]
    )


@given(
    tokens=st.integers(1, 5),
    experts=st.sampled_from([2, 5, 8, 33]),
    k=st.integers(1, 12),
    over_all=st.booleans(),
    biased=st.booleans(),
)
def test_router_chooses_the_largest_logits(
    tokens: int, experts: int, k: int, over_all: bool, biased: bool
) -> None:
    k = min(k, experts)
    x, weight = normal(tokens, 10).round(), normal(10, experts, seed=1).round()  # many ties
    bias = normal(experts, seed=2).round() if biased else None
    logits = x @ weight + (bias if bias is not None else 0.0)
    affinities, chosen, shares = run(router_top_k, machine(), x, weight, bias, k, biased, over_all)
    want = ranked(logits, k)
    assert torch.equal(chosen.long(), want)
    picked = logits.gather(1, want)
    weights = logits.softmax(-1).gather(1, want) if over_all else picked.softmax(-1)
    torch.testing.assert_close(shares, weights, rtol=1e-5, atol=1e-6)
    dense = torch.zeros(tokens, experts).scatter(1, want, weights)
    torch.testing.assert_close(affinities, dense, rtol=1e-5, atol=1e-6)


def test_router_of_many_tokens_on_two_cores() -> None:
    x, weight = normal(300, 130), normal(130, 512, seed=1)
    one, two = (run(router_top_k, machine(n), x, weight, None, 8, False, False) for n in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert torch.equal(one[1].long(), torch.topk(x @ weight, 8).indices)


def experts_in_torch(x: Tensor, affinities: Tensor, *weights: Tensor) -> Tensor:
    gate, up, down = (w.double() for w in weights)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for e in range(len(gate)):
        hidden = F.silu(x.double() @ gate[e]) * (x.double() @ up[e])
        out += affinities[:, e : e + 1].double() * (hidden @ down[e])
    return out


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1.6e-2)])
@pytest.mark.parametrize("shape", [(1, 4, 24, 7), (5, 3, 200, 130), (131, 2, 24, 33)])
def test_experts_add_up(shape: tuple[int, ...], dtype: torch.dtype, bound: float, lnc: int) -> None:
    tokens, experts, hidden, inner = shape
    x = normal(tokens, hidden, dtype=dtype)
    sizes = [(experts, hidden, inner)] * 2 + [(experts, inner, hidden)]
    weights = [
        (normal(*size, seed=i) / size[1] ** 0.5).to(dtype) for i, size in enumerate(sizes, start=1)
    ]
    affinities = normal(tokens, experts, seed=9).softmax(-1)
    affinities[:, 0] = 0.0
    got = run(moe_all_experts, machine(lnc), x, affinities, *weights)
    want = experts_in_torch(x, affinities, *weights)
    assert got.dtype == dtype
    assert (got.double() - want).abs().max() <= bound * max(1.0, want.abs().max().item())


def test_padding_tokens_stay_among_themselves() -> None:
    x = normal(4, 24)
    padded = torch.cat([x, torch.full((1, 24), torch.nan)])
    weights = [normal(3, 24, 24, seed=i) / 5 for i in (1, 2, 3)]
    affinities = torch.ones(5, 3) / 3
    got = run(moe_all_experts, machine(), padded, affinities, *weights)[:4]
    assert torch.equal(got, run(moe_all_experts, machine(), x, affinities[:4], *weights))


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_residual_is_added_before_the_norm(dtype: torch.dtype, lnc: int) -> None:
    x, residual = normal(130, 77, dtype=dtype), normal(130, 77, seed=1, dtype=dtype)
    weight = normal(77, seed=2, dtype=dtype)
    got, total = run(add_rms_norm, machine(lnc), x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    wide = total.double()
    want = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    bound: Any = {torch.float32: 2e-6, torch.bfloat16: 1.6e-2}[dtype]
    assert (got.double() - want).abs().max() <= bound * want.abs().max()
