# SPDX-License-Identifier: Apache-2.0
"""What operators should give, as naive float64 loops that share no code with any adapter."""

from __future__ import annotations

import math

import attrs
import numpy as np
import torch
from torch import Tensor

EPS = {torch.float32: 2e-6, torch.bfloat16: 1.6e-2}
"""Largest allowed error by dtype, relative to the largest expected magnitude (at least 1)."""


def assert_close(got: Tensor, want: np.ndarray | Tensor, dtype: torch.dtype | None = None) -> None:
    """Compare in fp64 and demand the dtype and shape of ``got``."""
    dtype = dtype or got.dtype
    assert got.dtype == dtype
    want = torch.as_tensor(want).double()
    assert got.shape == want.shape
    assert got.isfinite().all(), "not finite"
    bound = EPS[dtype] * max(1.0, want.abs().max().item())
    error = (got.double() - want).abs().max().item()
    assert error <= bound, f"error {error:.2e} exceeds {bound:.2e}"


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Equal bit by bit, NaN included."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: list[int],
    key_positions: list[int],
    scale: float,
    sliding_window: int | None = None,
    sinks: Tensor | None = None,
) -> np.ndarray:
    """Attention of ``q [T, Hq, D]`` over ``k, v [L, Hk, D]``, one scalar product at a time."""
    q_, k_, v_ = (x.double().numpy() for x in (q, k, v))
    group = q_.shape[1] // k_.shape[1]
    out = np.zeros(q_.shape)
    for t, here in enumerate(query_positions):
        seen = [
            j
            for j, there in enumerate(key_positions)
            if there <= here and (sliding_window is None or there > here - sliding_window)
        ]
        for h in range(q_.shape[1]):
            scores = [scale * float(q_[t, h] @ k_[j, h // group]) for j in seen]
            logits = scores if sinks is None else [*scores, float(sinks[h])]
            if not logits:
                continue
            top = max(logits)
            total = sum(math.exp(x - top) for x in logits)
            for score, j in zip(scores, seen, strict=True):
                out[t, h] += math.exp(score - top) / total * v_[j, h // group]
    return out


@attrs.define(eq=False)
class PagedBatch:
    """Ragged rows in a paged cache whose every other slot holds NaN or infinity.

    Attributes:
        lengths: Cached tokens per row.
        keys: ``[length, Hk, D]`` per row.
        values: Like ``keys``.
        k_cache: ``[N, Hk, S, D]``.
        v_cache: Like ``k_cache``.
        block_table: ``[B, M]`` int32, blocks shuffled, two columns more than needed.
    """

    lengths: list[int]
    keys: list[Tensor]
    values: list[Tensor]
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor

    @classmethod
    def random(
        cls,
        lengths: list[int],
        *,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> PagedBatch:
        """Fill ``lengths[b]`` positions of row b with normal noise."""
        g = torch.Generator().manual_seed(seed)
        counts = [-(-length // block_size) for length in lengths]
        num_blocks = 2 + sum(counts)
        shape = (num_blocks, kv_heads, block_size, head_dim)
        k_cache = torch.full(shape, torch.nan, dtype=dtype)
        v_cache = torch.full(shape, torch.inf, dtype=dtype)
        free = (torch.randperm(num_blocks - 1, generator=g) + 1).tolist()
        table = torch.full((len(lengths), max(counts) + 2), -1, dtype=torch.int32)
        keys, values = [], []
        for row, length in enumerate(lengths):
            k, v = (torch.randn(length, kv_heads, head_dim, generator=g).to(dtype) for _ in "kv")
            for position in range(length):
                if position % block_size == 0:
                    table[row, position // block_size] = free.pop()
                block = int(table[row, position // block_size])
                k_cache[block, :, position % block_size] = k[position]
                v_cache[block, :, position % block_size] = v[position]
            keys.append(k)
            values.append(v)
        return cls(list(lengths), keys, values, k_cache, v_cache, table)

    def forget_before(self, row: int, position: int) -> None:
        """Take away the row's blocks that end before ``position``, and poison them."""
        block_size = self.k_cache.shape[2]
        for column in range(position // block_size):
            block = int(self.block_table[row, column])
            self.k_cache[block], self.v_cache[block] = torch.nan, torch.nan
            self.block_table[row, column] = -1
