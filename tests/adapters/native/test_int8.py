# SPDX-License-Identifier: Apache-2.0
"""Weights of 8 bits: exact where they can be, and as wrong as half a step where they cannot."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.native.packing import packing
from tests.adapters.native.test_model import FORCED, PROMPT, SIZES, rig_of
from tests.contracts.oracles import assert_close
from tests.harness import relative_error
from tests.zoo import save_llama
from trnport import bootstrap
from trnport.adapters.native import NativeInt8Kernels, NativeKernels
from trnport.adapters.torch_cpu import TorchCpuKernels

BF16 = torch.bfloat16
ROWS = st.sampled_from([1, 3, 4, 5, 31, 33, 257])
WIDTHS = st.sampled_from([32, 96, 320, 576])
SCALE_BYTES = 128


@pytest.fixture(scope="module")
def int8():
    bootstrap.kernels("native_int8")
    return packing(NativeInt8Kernels)(TorchCpuKernels())


@pytest.fixture(scope="module")
def native():
    bootstrap.kernels("native")
    return packing(NativeKernels)(TorchCpuKernels())


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def representable(depth, columns, seed=0):
    """Whole numbers times a power of two, the largest of each column 127."""
    rng = torch.Generator().manual_seed(seed)
    whole = torch.randint(-127, 128, (depth, columns), generator=rng)
    whole[torch.randint(depth, (columns,), generator=rng), torch.arange(columns)] = 127
    return (whole * 2.0 ** -(torch.arange(columns) % 7 + 6)).to(BF16)


def unpacked(packed, depth):
    """The weights ``[in, out]`` in fp64 and the scales ``[out]`` that a packed tensor means."""
    scales = packed[:, :SCALE_BYTES].contiguous().view(torch.float32).flatten().double()
    whole = packed[:, SCALE_BYTES:].reshape(-1, depth // 2, 32, 2)
    whole = whole.permute(1, 3, 0, 2).reshape(depth, -1)
    return whole.double() * scales, scales


@given(depth=WIDTHS, columns=WIDTHS)
def test_weights_of_8_bits_are_packed_exactly(int8, depth, columns):
    weight = representable(depth, columns)
    packed = int8.pack("linear", weight)
    assert packed.dtype == torch.int8 and packed.shape == (columns // 32, 128 + depth * 32)
    assert torch.equal(unpacked(packed, depth)[0], weight.double())


@given(depth=WIDTHS, columns=WIDTHS)
def test_other_weights_move_by_half_a_step_at_most(int8, depth, columns):
    weight = normal(depth, columns)
    meant, scales = unpacked(int8.pack("linear", weight), depth)
    torch.testing.assert_close(scales, weight.double().abs().amax(0) / 127, rtol=1e-6, atol=0)
    assert ((meant - weight.double()).abs() <= scales * 0.5001).all()


@given(rows=ROWS, depth=WIDTHS, columns=WIDTHS, biased=st.booleans())
def test_products_are_those_of_the_rounded_weights(int8, rows, depth, columns, biased):
    x, weight = normal(rows, depth), normal(depth, columns, seed=1)
    bias = normal(columns, seed=2) if biased else None
    meant, scales = unpacked(int8.pack("linear", weight), depth)
    add = bias.double() if biased else 0.0
    want, exact = x.double() @ meant + add, x.double() @ weight.double() + add
    for got in (int8.linear(x, weight, bias), int8.qkv_proj(x, weight, bias)):
        assert got.dtype == BF16 and got.shape == want.shape
        rounding = want.abs() * 2**-8 + depth**0.5 * 1e-5
        assert ((got.double() - want).abs() <= rounding).all()
        step = x.double().abs().sum(1, keepdim=True) * scales * 0.5001
        assert ((got.double() - exact).abs() <= step + rounding).all()


@given(rows=ROWS, hidden=WIDTHS, inner=WIDTHS, biased=st.booleans())
def test_the_mlp_of_exact_weights_is_that_of_fp32(int8, rows, hidden, inner, biased):
    x = normal(rows, hidden)
    gate, up = representable(hidden, inner, 1), representable(hidden, inner, 2)
    weights = [gate / 32, up / 32, representable(inner, hidden, 3) / 32]
    biases = [normal(n, seed=4) for n in (inner, inner, hidden)] if biased else [None] * 3
    wide = [None if b is None else b.float() for b in biases]
    want = TorchCpuKernels().mlp(x.float(), *(w.float() for w in weights), *wide)
    assert_close(int8.mlp(x, *weights, *biases), want, BF16)


@pytest.mark.parametrize("rows", [1, 4, 5, 330, 1152])
def test_exact_weights_give_what_native_gives(int8, native, rows):
    """Many rows come in groups of strips, and 960 rows of weights in parts."""
    x, weight, bias = normal(rows, 960), representable(960, 96), normal(96, seed=2)
    got, want = (k.linear(x, weight, bias).double() for k in (int8, native))
    # The order of an fp32 sum may push a result over to the next bf16.
    assert ((got - want).abs() <= want.abs() * 2**-7 + 1e-3).all()


def test_columns_of_zeros_and_what_is_not_finite(int8):
    x, weight = normal(5, 64), normal(64, 96)
    want = int8.linear(x, weight)
    weight[:, 7], weight[3, 40], weight[9, 41] = 0, torch.nan, torch.inf
    got = int8.linear(x, weight)
    assert (got[:, 7] == 0).all() and got[:, 40:42].isnan().all()
    others = [n for n in range(96) if n not in (7, 40, 41)]
    assert torch.equal(got[:, others], want[:, others])


@pytest.mark.parametrize("rows", [1, 3, 17, 40, 290])
def test_a_row_of_nan_stays_alone(int8, rows):
    x, weight = normal(rows, 64), normal(64, 96, seed=1)
    want = int8.linear(x, weight)
    x[rows // 2] = torch.nan
    got = int8.linear(x, weight)
    others = torch.arange(rows) != rows // 2
    assert torch.equal(got[others], want[others]) and got[rows // 2].isnan().all()


@pytest.mark.parametrize("shape", [(33, 64), (64, 33)])
def test_what_native_does_not_pack_is_not_rounded(int8, shape):
    weight = normal(*shape)
    assert int8.pack("linear", weight) is weight
    wide = normal(64, 64).float()
    assert int8.pack("linear", wide) is wide


def test_a_model_is_smaller_and_close_to_native(tmp_path):
    save_llama(tmp_path, "biased", **SIZES)
    small, plain = (rig_of(tmp_path, BF16, kernels) for kernels in ("native_int8", "native"))
    got, want = (rig.teacher_forced(PROMPT, FORCED, [8, 7]).float() for rig in (small, plain))
    assert 0 < relative_error(got, want) < 0.05
    kinds = {n: p.dtype for n, p in small.model.named_parameters() if p.dim() > 1}
    kept = [name for name, dtype in kinds.items() if dtype != torch.int8]
    assert len(kept) == 1 and "embed" in kept[0]
