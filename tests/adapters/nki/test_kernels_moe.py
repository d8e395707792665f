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
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from trnport.adapters.nki.execute import Machine, run
from trnport.adapters.nki.kernels.fused_qkv import norm_qkv_rope
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


def mixture(lnc: int, x: Tensor, affinities: Tensor, weights: list[Tensor], *rest: Any) -> Tensor:
    biases, limit, alpha = rest or ([None] * 3, 0.0, 1.0)
    present = biases[0] is not None
    arguments = (x, affinities, *weights, *biases, present, limit, alpha)
    result: Tensor = run(moe_all_experts, machine(lnc), *arguments)
    return result


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
    got = mixture(lnc, x, affinities, weights)
    want = experts_in_torch(x, affinities, *weights)
    assert got.dtype == dtype
    assert (got.double() - want).abs().max() <= bound * max(1.0, want.abs().max().item())


def test_clamped_experts_with_biases_equal_gpt_oss() -> None:
    config = GptOssConfig(hidden_size=24, intermediate_size=33, num_local_experts=3)
    oracle = GptOssExperts(config).double()
    with torch.no_grad():
        for i, parameter in enumerate(oracle.parameters()):
            # Large enough that the limit of 7 is met on both sides.
            parameter.copy_(normal(*parameter.shape, seed=i) * 2)
    x, affinities = normal(5, 24), normal(5, 3, seed=9).softmax(-1)
    every = torch.arange(3).expand(5, 3)
    with torch.no_grad():
        want = oracle(x.double(), every, affinities.double()).view(5, 24)
    up, up_bias = oracle.gate_up_proj.detach().float(), oracle.gate_up_proj_bias.detach().float()
    down, down_bias = oracle.down_proj.detach().float(), oracle.down_proj_bias.detach().float()
    weights = [t.contiguous() for t in (up[..., ::2], up[..., 1::2], down)]
    biases = [t.contiguous() for t in (up_bias[..., ::2], up_bias[..., 1::2], down_bias)]
    got = mixture(1, x, affinities, weights, biases, oracle.limit, oracle.alpha)
    assert (got.double() - want).abs().max() <= 1e-5 * want.abs().max()


def test_padding_tokens_stay_among_themselves() -> None:
    x = normal(4, 24)
    padded = torch.cat([x, torch.full((1, 24), torch.nan)])
    weights = [normal(3, 24, 24, seed=i) / 5 for i in (1, 2, 3)]
    affinities = torch.ones(5, 3) / 3
    got = mixture(1, padded, affinities, weights)[:4]
    assert torch.equal(got, mixture(1, x, affinities[:4], weights))


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


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_fused_projection_equals_its_parts(biased: bool, lnc: int) -> None:
    from trnport.adapters.torch_cpu import TorchCpuKernels

    parts = TorchCpuKernels()
    x, norm = normal(130, 200), normal(200, seed=1)
    weight, bias = normal(200, 9 * 64, seed=2) / 14, normal(9 * 64, seed=3) if biased else None
    angle = normal(130, 24, seed=4)
    arguments = (x, norm, weight, bias, angle.cos(), angle.sin(), 1e-5, (5, 2), biased)
    got = run(norm_qkv_rope, machine(lnc), *arguments)
    projected = parts.qkv_proj(parts.rms_norm(x, norm, 1e-5), weight, bias).view(130, 9, 64)
    q, k, v = projected.split([5, 2, 2], dim=1)
    want = (*parts.rope(q, k, angle.cos(), angle.sin()), v)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
