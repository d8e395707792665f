# SPDX-License-Identifier: Apache-2.0
"""Kernels on one core and two, on both targets, and at sizes that cross every tile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contracts.oracles import PagedBatch, assert_close, same_bytes
from trnport.adapters.nki.adapter import NkiKernels
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.errors import ConfigError
from trnport.core.ports import Kernels

REFERENCE = TorchCpuKernels()


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def nki(**options: Any) -> NkiKernels:
    return NkiKernels(REFERENCE, strict=True, **options)


def rms_norm(kernels: Kernels, tokens: int, hidden: int) -> Tensor:
    return kernels.rms_norm(normal(tokens, hidden), normal(hidden, seed=1), 1e-5)


def rope(kernels: Kernels, tokens: int, dim: int) -> Tensor:
    angle = normal(tokens, dim // 2 - 1, seed=2)
    q, k = normal(tokens, 5, dim), normal(tokens, 1, dim, seed=1)
    return torch.cat(kernels.rope(q, k, angle.cos(), angle.sin()), 1)


def linear(kernels: Kernels, tokens: int, inputs: int, outputs: int) -> Tensor:
    return kernels.linear(
        normal(tokens, inputs) / inputs**0.5, normal(inputs, outputs, seed=1), normal(outputs)
    )


def mlp(kernels: Kernels, tokens: int, hidden: int, inner: int) -> Tensor:
    gate, up = (normal(hidden, inner, seed=i) / hidden**0.5 for i in (1, 2))
    biases = (normal(inner), normal(inner, seed=5), normal(hidden, seed=6))
    return kernels.mlp(
        normal(tokens, hidden), gate, up, normal(inner, hidden, seed=3) / inner**0.5, *biases
    )


def prefill(kernels: Kernels, tokens: int, dim: int, **options: Any) -> Tensor:
    q, k, v = normal(tokens, 3, dim), normal(tokens, 1, dim, seed=1), normal(tokens, 1, dim, seed=2)
    valid = torch.arange(tokens) < tokens - 3
    got = kernels.prefill_attention(q, k, v, valid, scale=dim**-0.5, **options)
    return got[: tokens - 3]


def prior(kernels: Kernels, tokens: int, cached: int, block_size: int, **options: Any) -> Tensor:
    q, k, v = normal(tokens, 4, 20), normal(tokens, 2, 20, seed=1), normal(tokens, 2, 20, seed=2)
    batch = PagedBatch.random([cached], kv_heads=2, head_dim=20, block_size=block_size)
    return kernels.prefill_attention_with_prior(
        q,
        k,
        v,
        torch.ones(tokens, dtype=torch.bool),
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        torch.tensor([[cached]], dtype=torch.int32),
        scale=0.25,
        **options,
    )


def decode(
    kernels: Kernels, lengths: list[int], block_size: int, dim: int, **options: Any
) -> Tensor:
    batch = PagedBatch.random(lengths, kv_heads=2, head_dim=dim, block_size=block_size)
    return kernels.decode_attention(
        normal(len(lengths), 6, dim),
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        torch.tensor(lengths, dtype=torch.int32) - 1,
        scale=dim**-0.5,
        **options,
    )


SINKS = normal(6, seed=8)

CASES: dict[str, Callable[[Kernels], Tensor]] = {
    "rms_norm of 129 rows": functools.partial(rms_norm, tokens=129, hidden=257),
    "rope of 257 rows": functools.partial(rope, tokens=257, dim=12),
    "linear past a block of tokens": functools.partial(linear, tokens=515, inputs=130, outputs=515),
    "linear of one token": functools.partial(linear, tokens=1, inputs=576, outputs=1030),
    "mlp past a block of tokens": functools.partial(mlp, tokens=515, hidden=130, inner=260),
    "mlp of one token": functools.partial(mlp, tokens=1, hidden=576, inner=1536),
    "prefill past a chunk": functools.partial(prefill, tokens=600, dim=20),
    "prefill with a window that skips chunks": functools.partial(
        prefill, tokens=1100, dim=4, sliding_window=70
    ),
    "prefill of wide heads with sinks": functools.partial(
        prefill, tokens=140, dim=136, sinks=SINKS[:3]
    ),
    "prior of several chunks": functools.partial(prior, tokens=130, cached=700, block_size=16),
    "prior in a window": functools.partial(
        prior, tokens=5, cached=600, block_size=5, sliding_window=40
    ),
    "prior in large blocks": functools.partial(
        prior, tokens=3, cached=300, block_size=256, sinks=SINKS[:4]
    ),
    "decode of several chunks": functools.partial(
        decode, lengths=[900, 3, 513], block_size=16, dim=64
    ),
    "decode of wide heads": functools.partial(decode, lengths=[70], block_size=32, dim=256),
    "decode of large blocks": functools.partial(decode, lengths=[650], block_size=128, dim=10),
    "decode in a window with sinks": functools.partial(
        decode, lengths=[600, 40], block_size=7, dim=10, sliding_window=100, sinks=SINKS
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_equals_torch_across_tiles(name: str) -> None:
    got, want = (CASES[name](kernels) for kernels in (nki(), REFERENCE))
    bound = 1e-5 * max(1.0, want.abs().max().item())
    assert (got - want).abs().max().item() <= bound
    assert got.isfinite().all()


@pytest.mark.parametrize("name", CASES)
def test_two_cores_and_the_next_target_give_the_same_bits(name: str) -> None:
    want = CASES[name](nki())
    assert same_bytes(CASES[name](nki(lnc=2)), want)
    assert same_bytes(CASES[name](nki(target="trn3")), want)


@pytest.mark.parametrize("lnc", [1, 2])
def test_a_chunk_of_kv_past_a_tile_is_written_whole(lnc: int) -> None:
    rows = [normal(300, 3, 7, seed=i) for i in (1, 2)]
    slots = torch.randperm(400, generator=torch.Generator().manual_seed(0))[:300]
    slots[::7] = -1
    caches = [[torch.full((25, 3, 16, 7), torch.nan) for _ in "kv"] for _ in range(2)]
    nki(lnc=lnc).kv_write(*rows, *caches[0], slots)
    REFERENCE.kv_write(*rows, *caches[1], slots)
    assert same_bytes(caches[0][0], caches[1][0])
    assert same_bytes(caches[0][1], caches[1][1])


@pytest.mark.parametrize("lnc", [1, 2])
def test_top_k_of_many_rows_and_pieces(lnc: int) -> None:
    logits = normal(130, 2).repeat(1, 10000) + normal(1, 20000, seed=1).round()
    got, want = nki(lnc=lnc).top_k(logits, 11), REFERENCE.top_k(logits, 11)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_fp8_caches_are_read_and_written() -> None:
    rows = [normal(5, 2, 8, seed=i, dtype=torch.bfloat16) for i in (1, 2)]
    caches = [torch.zeros(4, 2, 4, 8).to(torch.float8_e5m2) for _ in "kv"]
    kernels = nki()
    kernels.kv_write(*rows, *caches, torch.tensor([4, 5, 6, 7, 8]))
    assert torch.equal(
        caches[0][1].float(), rows[0][:4].transpose(0, 1).to(torch.float8_e5m2).float()
    )
    arguments = (torch.tensor([[1, 2]], dtype=torch.int32), torch.tensor([4], dtype=torch.int32))
    q = normal(1, 4, 8, dtype=torch.bfloat16)
    wide = [cache.bfloat16() for cache in caches]
    want = REFERENCE.decode_attention(q, *wide, *arguments, scale=0.3)
    assert_close(kernels.decode_attention(q, *caches, *arguments, scale=0.3), want)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"target": "trn1"}, "target='trn1'"), ({"lnc": 3}, "lnc=3"), ({"lnc": (2,)}, "lnc=")],
)
def test_a_machine_that_does_not_exist_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NkiKernels(REFERENCE, **options)


def ones(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int32)


LARGEST: dict[str, Callable[[Kernels], object]] = {
    "rms_norm": lambda k: k.rms_norm(torch.zeros(129, 10240), torch.zeros(10240), 1.0),
    "rope": lambda k: k.rope(*[torch.zeros(129, 32, 256)] * 2, *[torch.zeros(129, 128)] * 2),
    "linear": lambda k: k.linear(torch.zeros(129, 24576), torch.zeros(24576, 8)),
    "kv_write": lambda k: k.kv_write(
        *[torch.zeros(129, 64, 256)] * 2, *[torch.zeros(4, 64, 64, 256)] * 2, torch.arange(129)
    ),
    "prefill": lambda k: k.prefill_attention(
        torch.zeros(8192, 1, 256),
        *[torch.zeros(8192, 1, 256)] * 2,
        torch.ones(8192, dtype=torch.bool),
        scale=1.0,
        sliding_window=1,
    ),
    "prior": lambda k: k.prefill_attention_with_prior(
        *[torch.zeros(128, 1, 256)] * 3,
        torch.ones(128, dtype=torch.bool),
        *[torch.zeros(4, 1, 128, 256)] * 2,
        ones(1, 63),
        ones(1, 1) * 8000,
        scale=1.0,
    ),
    "decode": lambda k: k.decode_attention(
        torch.zeros(1, 128, 256),
        *[torch.zeros(4, 1, 512, 256)] * 2,
        ones(1, 8),
        ones(1) * 4095,
        scale=1.0,
    ),
    "top_k": lambda k: k.top_k(torch.zeros(128, 16384), 64),
}


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_sizes_fit_on_a_core(name: str) -> None:
    """In fp32; the simulator refuses what SBUF or PSUM cannot hold."""
    LARGEST[name](nki())
