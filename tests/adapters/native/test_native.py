# SPDX-License-Identifier: Apache-2.0
"""The C++ operators at sizes that they take themselves, against fp64 and fp32 in plain torch."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.native.packing import PackingKernels
from tests.contracts.oracles import assert_close
from trnport import bootstrap
from trnport.adapters.native import NativeKernels, library
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.errors import CompilationError

BF16 = torch.bfloat16
ROWS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 257])
WIDTHS = st.sampled_from([32, 64, 96, 320, 576])
COUNTS = st.integers(1, 3)


@pytest.fixture(scope="module")
def native():
    bootstrap.kernels("native")
    return PackingKernels(TorchCpuKernels())


@pytest.fixture(scope="module")
def reference():
    return TorchCpuKernels()


def normal(*shape, seed=0, dtype=BF16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- products -------------------------------------------------------------------------------------


@given(rows=ROWS, depth=WIDTHS, columns=WIDTHS, biased=st.booleans())
def test_products_round_once(native, rows, depth, columns, biased):
    x, weight = normal(rows, depth), normal(depth, columns, seed=1)
    bias = normal(columns, seed=2) if biased else None
    want = x.double() @ weight.double() + (bias.double() if biased else 0.0)
    assert native.pack("linear", weight).dim() == 4
    for got in (native.linear(x, weight, bias), native.qkv_proj(x, weight, bias)):
        assert got.dtype == BF16 and got.shape == want.shape
        # Half a unit in the last place of bf16, and what the order of an fp32 sum adds.
        error = (got.double() - want).abs()
        assert (error <= want.abs() * 2**-8 + depth**0.5 * 1e-5).all()


@given(depth=WIDTHS, columns=WIDTHS)
def test_packing_moves_every_bit(native, depth, columns):
    bits = torch.arange(depth * columns).to(torch.int16).view(depth, columns)
    packed = native.pack("linear", bits.view(BF16)).view(torch.int16)
    for block, pair in itertools.product(range(columns // 32), range(depth // 2)):
        want = bits[2 * pair : 2 * pair + 2, 32 * block : 32 * block + 32].T
        assert torch.equal(packed[block, pair], want)


@given(rows=ROWS, hidden=WIDTHS, inner=WIDTHS, biased=st.booleans())
def test_the_mlp_is_that_of_fp32(native, rows, hidden, inner, biased):
    x, gate, up = normal(rows, hidden), normal(hidden, inner, seed=1), normal(hidden, inner, seed=2)
    down = normal(inner, hidden, seed=3)
    biases = [normal(n, seed=4) for n in (inner, inner, hidden)] if biased else [None] * 3
    wide = [None if b is None else b.float() for b in biases]
    weights = [w / hidden**0.5 for w in (gate, up)] + [down / inner**0.5]
    want = TorchCpuKernels().mlp(x.float(), *(w.float() for w in weights), *wide)
    assert_close(native.mlp(x, *weights, *biases), want, BF16)


@pytest.mark.parametrize("rows", [255, 1152])
@pytest.mark.parametrize("depth", [576, 960])
def test_products_of_many_rows_come_in_groups_and_parts(native, rows, depth):
    """Groups of strips, parts of the depth, a last strip that repeats rows of the one before."""
    x, weight = normal(rows, depth), normal(depth, 96, seed=1)
    want = x.double() @ weight.double()
    error = (native.linear(x, weight).double() - want).abs()
    assert (error <= want.abs() * 2**-8 + depth**0.5 * 1e-5).all()
    gate, up, down = (normal(depth, 96, seed=i) / depth**0.5 for i in (2, 3, 4))
    want = TorchCpuKernels().mlp(x.float(), gate.float(), up.float(), down.T.float())
    assert_close(native.mlp(x, gate, up, down.T.contiguous()), want, BF16)


def test_a_row_of_nan_stays_alone(native):
    for rows in (1, 3, 17, 40, 290, 577):
        x, weight = normal(rows, 64), normal(64, 96, seed=1)
        want = native.linear(x, weight)
        x[rows // 2] = torch.nan
        got = native.linear(x, weight)
        others = torch.arange(rows) != rows // 2
        assert torch.equal(got[others], want[others]) and got[rows // 2].isnan().all()


def test_rows_do_not_depend_on_the_batch(native):
    """One request's tokens must not change with its neighbours: strips are 32 rows high."""
    x, weight = normal(80, 576), normal(576, 320, seed=1)
    whole = native.linear(x, weight)
    assert torch.equal(native.linear(x[5:69], weight), whole[5:69])


@pytest.mark.parametrize("shape", [(33, 64), (64, 33), (16, 64)])
def test_odd_weights_and_fp32_are_left_alone(native, shape):
    weight = normal(*shape)
    assert native.pack("linear", weight) is weight
    wide = normal(64, 64, dtype=torch.float32)
    assert native.pack("linear", wide) is wide
    x = normal(3, shape[0])
    assert torch.equal(native.linear(x, weight), TorchCpuKernels().linear(x, weight))


def test_packed_weights_outlive_each_other(native):
    """They share memory of an arena, which is only returned as a whole."""
    weights = [normal(64, 1024, seed=i) for i in range(9)]
    packed = [native.pack("linear", w) for w in weights]
    x = normal(2, 64)
    want = [native.linear(x, w) for w in weights]
    del packed[::2]
    torch.full((1 << 20,), torch.nan)
    for ours, expected in zip(packed, want[1::2], strict=True):
        assert torch.equal(NativeKernels.linear(native, x, ours), expected)


# --- attention ------------------------------------------------------------------------------------


def cache_of(blocks, heads, size, dim, dtype, seed=0):
    """Caches full of NaN but for the blocks that somebody fills."""
    return [torch.full((blocks, heads, size, dim), torch.nan, dtype=dtype) for _ in range(2)]


def write(reference, caches, table, lengths, heads, size, dim, dtype):
    """Fill each row's blocks up to its length; slots behind it keep their NaN."""
    for row, length in enumerate(lengths):
        if not length:
            continue
        slots = (table[row, :, None].long() * size + torch.arange(size)).flatten()[:length]
        k, v = (normal(length, heads, dim, seed=10 * row + i, dtype=dtype) for i in range(2))
        reference.kv_write(k, v, *caches, slots)


@st.composite
def attention_cases(draw):
    kv_heads = draw(COUNTS)
    return {
        "kv_heads": kv_heads,
        "heads": kv_heads * draw(st.sampled_from([1, 2, 3, 4, 5, 6, 8])),
        "dim": draw(st.sampled_from([32, 64, 96])),
        "size": draw(st.sampled_from([1, 5, 16, 32])),
        "dtype": draw(st.sampled_from([BF16, torch.float32])),
        "window": draw(st.sampled_from([None, 1, 7, 40])),
        "has_sinks": draw(st.booleans()),
    }


@given(case=attention_cases(), lengths=st.lists(st.integers(1, 90), min_size=1, max_size=5))
def test_decode_attention_reads_its_own_positions_alone(native, reference, case, lengths):
    size, dim, dtype = case["size"], case["dim"], case["dtype"]
    columns = -(-max(lengths) // size) + 1
    caches = cache_of(len(lengths) * columns + 1, case["kv_heads"], size, dim, dtype)
    order = torch.randperm(len(lengths) * columns, generator=torch.Generator().manual_seed(1)) + 1
    table = order.view(len(lengths), columns).int()
    write(reference, caches, table, lengths, case["kv_heads"], size, dim, dtype)
    for row, length in enumerate(lengths):
        table[row, -(-length // size) :] = -1
    table = torch.cat([table, torch.full_like(table[:1], -1)])  # a row of padding
    positions = torch.tensor([*(n - 1 for n in lengths), 0], dtype=torch.int32)
    q = normal(len(lengths) + 1, case["heads"], dim, dtype=dtype, seed=5)
    sinks = normal(case["heads"], dtype=dtype, seed=6) if case["has_sinks"] else None
    options = {"scale": dim**-0.5, "sliding_window": case["window"], "sinks": sinks}
    got = native.decode_attention(q, *caches, table, positions, **options)
    want = reference.decode_attention(q, *caches, table, positions, **options)
    assert got[-1].isfinite().all()
    assert_close(got[:-1], want[:-1].float(), dtype)


@given(
    case=attention_cases(),
    tokens=st.sampled_from([1, 4, 31, 33, 70, 300]),
    cached=st.sampled_from([0, 1, 16, 45]),
    padding=st.sampled_from([0, 3, 40]),
)
def test_prefill_attention_is_causal_whatever_is_hidden(
    native, reference, case, tokens, cached, padding
):
    size, dim, heads, kv_heads = case["size"], case["dim"], case["heads"], case["kv_heads"]
    columns = -(-cached // size) + 2
    caches = cache_of(columns + 1, kv_heads, size, dim, BF16)
    table = (torch.arange(columns) + 1)[None].int()
    write(reference, caches, table, [cached], kv_heads, size, dim, BF16)
    table[0, -(-cached // size) :] = -1
    total = tokens + padding
    q, k, v = (normal(total, n, dim, seed=i) for i, n in enumerate([heads, kv_heads, kv_heads]))
    for x in (q, k, v):
        x[tokens:] = torch.nan
    valid = torch.arange(total) < tokens
    sinks = normal(heads, seed=6) if case["has_sinks"] else None
    options = {"scale": dim**-0.5, "sliding_window": case["window"], "sinks": sinks}
    prior = (*caches, table, torch.tensor([[cached]], dtype=torch.int32))
    want = reference.prefill_attention_with_prior(q, k, v, valid, *prior, **options)
    got = native.prefill_attention_with_prior(q, k, v, valid, *prior, **options)
    assert_close(got[:tokens], want[:tokens].float(), BF16)
    if not cached:
        got = native.prefill_attention(q, k, v, valid, **options)
        assert_close(got[:tokens], want[:tokens].float(), BF16)


def test_rows_are_written_from_views(native):
    qkv = normal(5, 9, 64)
    caches = cache_of(4, 3, 16, 64, BF16)
    slots = torch.tensor([17, -1, 40, 16, -1])
    native.kv_write(qkv[:, 3:6], qkv[:, 6:], *caches, slots)
    for cache, rows in zip(caches, (qkv[:, 3:6], qkv[:, 6:]), strict=True):
        for row in (0, 2, 3):
            assert torch.equal(cache[slots[row] // 16, :, slots[row] % 16], rows[row])
        assert cache.isnan().sum() == cache.numel() - 3 * 3 * 64


# --- the library ----------------------------------------------------------------------------------


def test_a_compiler_that_fails_is_named(tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho no such instruction >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(CompilationError, match=r"no such instruction[\s\S]*torch_cpu"):
        library._compile(str(broken), tmp_path)


PLAIN = """
import torch
from trnport.adapters.native import library
plain = ("-std=c++20", "-O1", "-fopenmp", "-fPIC", "-DCPU_CAPABILITY=DEFAULT")
library._flags = lambda: plain
from trnport import bootstrap
import tests.adapters.native.test_native as tests
kernels = tests.PackingKernels(tests.TorchCpuKernels())
bootstrap.kernels("native")
tests.test_products_round_once.hypothesis.inner_test(kernels, 5, 64, 96, True)
tests.test_the_mlp_is_that_of_fp32.hypothesis.inner_test(kernels, 33, 64, 96, True)
tests.test_products_of_many_rows_come_in_groups_and_parts(kernels, 330, 576)
tests.test_rows_do_not_depend_on_the_batch(kernels)
import tests.adapters.native.test_int8 as int8
small = int8.packing(int8.NativeInt8Kernels)(tests.TorchCpuKernels())
int8.test_products_are_those_of_the_rounded_weights.hypothesis.inner_test(small, 5, 64, 96, True)
int8.test_the_mlp_of_exact_weights_is_that_of_fp32.hypothesis.inner_test(small, 33, 320, 96, True)
int8.test_exact_weights_give_what_native_gives(small, kernels, 330)
case = dict(
    kv_heads=2, heads=6, dim=64, size=16, dtype=torch.bfloat16, window=40, has_sinks=True
)
tests.test_prefill_attention_is_causal_whatever_is_hidden.hypothesis.inner_test(
    kernels, tests.TorchCpuKernels(), case, 300, 45, 3
)
"""


@pytest.mark.slow
def test_a_processor_without_these_instructions_computes_the_same(tmp_path):
    subprocess.run([sys.executable, "-c", PLAIN], check=True, timeout=280)
