# SPDX-License-Identifier: Apache-2.0
"""Contract of the Kernels port: everything but attention, which is in test_kernels_attention."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    apply_rotary_pos_emb,
)

from tests.contracts.oracles import assert_close, same_bytes
from trnport.core.ports import Kernels

DTYPES = [torch.float32, torch.bfloat16]


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(kernels: Kernels, got: Tensor, want: Tensor) -> None:
    """Bit by bit where torch computes; other kernels sum in another order and round less often."""
    if kernels.name in {"torch_cpu", "recording(torch_cpu)", "poisoning(torch_cpu)"}:
        assert torch.equal(got, want)
    else:
        assert_close(got, want)


# --- rms_norm ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 48), (5, 77), (4, 3, 10)])
def test_rms_norm_is_exact(kernels: Kernels, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype, seed=1)
    wide = x.double()
    want = wide / (wide.square().sum(-1, keepdim=True) / shape[-1] + 1e-3).sqrt() * weight.double()
    assert_close(kernels.rms_norm(x, weight, 1e-3), want, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1.0, 300.0, 1e-4])
def test_rms_norm_has_the_bits_of_transformers(
    kernels: Kernels, size: float, dtype: torch.dtype
) -> None:
    x, weight = normal(7, 48, dtype=dtype) * size, normal(48, dtype=dtype, seed=1)
    norm = LlamaRMSNorm(48, eps=1e-5).to(dtype)
    norm.weight.data = weight
    same(kernels, kernels.rms_norm(x, weight, 1e-5), norm(x))


def test_rms_norm_of_bf16_sums_in_fp32(kernels: Kernels) -> None:
    x = torch.full((1, 4096), 3.0, dtype=torch.bfloat16)  # a bf16 sum of 9s stops at 2048 or so
    assert_close(kernels.rms_norm(x, torch.ones_like(x[0]), 0.0), torch.ones(1, 4096))


# --- rope -------------------------------------------------------------------------------------


def angles(tokens: int, half: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    frequency = 10000.0 ** (-torch.arange(half) / half)
    angle = torch.arange(tokens)[:, None] * 37 * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "rotated"), [(2, 2), (10, 10), (64, 64), (10, 4), (5, 4)])
def test_rope_turns_pairs_of_halves(
    kernels: Kernels, dim: int, rotated: int, dtype: torch.dtype
) -> None:
    q, k = normal(4, 6, dim, dtype=dtype), normal(4, 2, dim, dtype=dtype, seed=1)
    cos, sin = angles(4, rotated // 2)
    for got, x in zip(kernels.rope(q, k, cos, sin), (q, k), strict=True):
        want = x.double().clone()
        for t in range(4):
            for i in range(rotated // 2):
                j = i + rotated // 2
                c, s = float(cos[t, i]), float(sin[t, i])
                a, b = x[t, :, i].double(), x[t, :, j].double()
                want[t, :, i], want[t, :, j] = a * c - b * s, b * c + a * s
        assert_close(got, want, dtype)
        assert torch.equal(got[..., rotated:], x[..., rotated:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_has_the_bits_of_transformers(kernels: Kernels, dtype: torch.dtype) -> None:
    q, k = normal(9, 6, 10, dtype=dtype), normal(9, 2, 10, dtype=dtype, seed=1)
    cos, sin = angles(9, 5, dtype)
    got = kernels.rope(q, k, cos, sin)
    twice = (torch.cat([x, x], -1)[None] for x in (cos, sin))
    want = apply_rotary_pos_emb(q[None], k[None], *twice, unsqueeze_dim=2)
    same(kernels, got[0], want[0][0])
    same(kernels, got[1], want[1][0])


# --- projections ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 5])
def test_projections_are_matrix_products(
    kernels: Kernels, tokens: int, bias: bool, dtype: torch.dtype
) -> None:
    x, weight = normal(tokens, 48, dtype=dtype) / 7, normal(48, 77, dtype=dtype, seed=1)
    b = normal(77, dtype=dtype, seed=2) if bias else None
    want = x.double() @ weight.double() + (b.double() if bias else 0.0)
    assert_close(kernels.qkv_proj(x, weight, b), want, dtype)
    assert_close(kernels.linear(x, weight, b), want, dtype)
    assert_close(kernels.o_proj(x.view(tokens, 6, 8), weight, b), want, dtype)


def test_o_proj_flattens_head_by_head(kernels: Kernels) -> None:
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    weight = torch.tensor([[1.0], [10.0], [100.0], [1e3], [1e4], [1e5]])
    assert kernels.o_proj(x, weight).tolist() == [[654321.0]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
def test_mlp_gates_with_silu(kernels: Kernels, bias: bool, dtype: torch.dtype) -> None:
    config = LlamaConfig(hidden_size=24, intermediate_size=77, num_attention_heads=4, mlp_bias=bias)
    torch.manual_seed(0)
    oracle = LlamaMLP(config).to(dtype)
    layers = (oracle.gate_proj, oracle.up_proj, oracle.down_proj)
    x = normal(5, 24, dtype=dtype)
    weights = [layer.weight.detach().T.contiguous() for layer in layers]
    biases = [layer.bias.detach() for layer in layers] if bias else [None] * 3
    with torch.no_grad():
        want = oracle.double()(x.double())
    assert_close(kernels.mlp(x, *weights, *biases), want, dtype)


def test_padding_rows_leave_other_rows_alone(kernels: Kernels) -> None:
    x = normal(5, 24)
    padded = torch.cat([x, torch.full((2, 24), torch.nan), torch.full((1, 24), torch.inf)])
    square, gate, down = normal(24, 24, seed=1), normal(24, 7, seed=2), normal(7, 24, seed=3)
    calls = [
        lambda x: kernels.rms_norm(x, square[0], 1e-5),
        lambda x: kernels.rope(*(x.view(-1, 4, 6),) * 2, x[:, :3], x[:, :3])[0],
        lambda x: kernels.qkv_proj(x, square, square[0]),
        lambda x: kernels.linear(x, square),
        lambda x: kernels.o_proj(x.view(-1, 4, 6), square),
        lambda x: kernels.mlp(x, gate, gate, down),
        lambda x: kernels.top_k(x, 5)[0],
    ]
    for call in calls:
        assert_close(call(padded)[:5], call(x))


# --- top_k ------------------------------------------------------------------------------------

few_values = st.sampled_from([0.0, -0.0, 1.0, 1.5, -1.0, -3.0, 1e-40, -math.inf, math.inf])


@given(data=st.data())
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_top_k_orders_by_value_then_index(
    kernels: Kernels, dtype: torch.dtype, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 40))
    k = data.draw(st.integers(1, size))
    row = st.lists(few_values, min_size=size, max_size=size)
    logits = torch.tensor(data.draw(st.lists(row, min_size=1, max_size=3))).to(dtype)
    values, indices = kernels.top_k(logits, k)
    assert values.dtype == dtype
    assert indices.dtype == torch.int64
    for row_values, row_indices, numbers in zip(values, indices, logits.tolist(), strict=True):
        want = sorted(range(size), key=lambda i, numbers=numbers: (-numbers[i], i))[:k]
        assert row_indices.tolist() == want
        assert row_values.tolist() == [numbers[i] for i in want]


def test_top_k_finds_the_largest_of_a_real_vocabulary(kernels: Kernels) -> None:
    logits = normal(2, 49157)
    values, indices = kernels.top_k(logits, 256)
    want = torch.topk(logits, 256)
    assert torch.equal(values, want.values)
    assert torch.equal(indices, want.indices)


def test_top_k_merges_over_shards(kernels: Kernels) -> None:
    logits = normal(3, 24).mul(2).round()  # many ties, also across shards
    parts = [kernels.top_k(shard, 6) for shard in logits.chunk(3, -1)]
    values = torch.cat([part[0] for part in parts], -1)
    indices = torch.cat([part[1] + 8 * i for i, part in enumerate(parts)], -1)
    merged, among = kernels.top_k(values, 6)
    whole = kernels.top_k(logits, 6)
    assert torch.equal(merged, whole[0])
    assert torch.equal(indices.gather(-1, among), whole[1])


# --- kv_write ---------------------------------------------------------------------------------


@given(data=st.data())
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.float32, torch.bfloat16)],
)
def test_kv_write_fills_its_slots_and_no_other_byte(
    kernels: Kernels, dtype: torch.dtype, cache_dtype: torch.dtype, data: st.DataObject
) -> None:
    block_size = data.draw(st.sampled_from([1, 3, 16]))
    tokens = data.draw(st.integers(1, 9))
    blocks, heads, dim = 6, data.draw(st.sampled_from([1, 3])), data.draw(st.sampled_from([5, 10]))
    all_slots = st.integers(block_size, blocks * block_size - 1)  # nobody writes block 0
    slots = data.draw(st.lists(all_slots, max_size=min(tokens, blocks - 1), unique=True))
    slots = data.draw(st.permutations(slots + [-1] * (tokens - len(slots))))
    shape = (blocks, heads, block_size, dim)
    caches = [normal(*shape, dtype=cache_dtype, seed=s) for s in (1, 2)]
    caches[0][:, :, 0] = torch.nan  # a byte-wise no-op must keep these, too
    want = [cache.clone() for cache in caches]
    rows = [normal(tokens, heads, dim, dtype=dtype, seed=s) for s in (3, 4)]
    for x in rows:
        x[torch.tensor(slots) == -1] = torch.nan
    for cache, x in zip(want, rows, strict=True):
        for token, slot in enumerate(slots):
            if slot != -1:
                cache[slot // block_size, :, slot % block_size] = x[token].to(cache_dtype)
    assert kernels.kv_write(*rows, *caches, torch.tensor(slots)) is None
    assert same_bytes(caches[0], want[0])
    assert same_bytes(caches[1], want[1])


@pytest.mark.parametrize("slots", [[-1], [-1, -1, 7], [7, -1, -1], [-1, 7, -1, 8], [-1] * 4])
def test_kv_write_skips_padding_wherever_it_stands(kernels: Kernels, slots: list[int]) -> None:
    caches = [torch.full((4, 2, 3, 5), torch.nan) for _ in "kv"]
    x = torch.full((len(slots), 2, 5), 9.0)
    kernels.kv_write(x, x, *caches, torch.tensor(slots))
    for cache in caches:
        written = (~cache.isnan()).all(3).all(1).flatten().nonzero().flatten().tolist()
        assert written == sorted(slot for slot in slots if slot != -1)
        assert cache.isnan().sum() == cache.numel() - 10 * len(written)


def test_kv_write_keeps_keys_and_values_apart(kernels: Kernels) -> None:
    k_cache, v_cache = torch.zeros(2, 1, 2, 3), torch.zeros(2, 1, 2, 3)
    kernels.kv_write(
        torch.ones(1, 1, 3), torch.full((1, 1, 3), 2.0), k_cache, v_cache, torch.tensor([3])
    )
    assert k_cache[1, 0, 1].tolist() == [1.0] * 3
    assert v_cache[1, 0, 1].tolist() == [2.0] * 3
