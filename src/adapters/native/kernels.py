# SPDX-License-Identifier: Apache-2.0
"""The Kernels port on the C++ operators, and on another set for what they do not take."""

from __future__ import annotations

import torch
from torch import Tensor

from trnport.core.ports.kernels import CachedPrefix, Kernels

_BLOCK = 32
"""Rows and columns of a packed weight come in multiples of it, and dimensions of a head, too."""

_ops = torch.ops.trnport_native


class NativeKernels(Kernels):
    """Operators for the host's CPU that read bf16 weights packed and the KV cache in place.

    Args:
        base: Computes normalisation and rotary embedding, and every call that the C++ operators
            do not take: fp32 weights, sizes that are no multiples of 32.
    """

    name = "native"

    def __init__(self, base: Kernels) -> None:
        self._base = base

    def pack(self, operator: str, weight: Tensor) -> Tensor:
        """Blocks of 32 columns, pairs of rows side by side: ``[out / 32, in / 2, 32, 2]``."""
        del operator
        if not self._can_pack(weight):
            return weight
        packed: Tensor = _ops.pack(weight)
        return packed

    @staticmethod
    def _can_pack(weight: Tensor) -> bool:
        rows, columns = weight.shape
        return weight.dtype == torch.bfloat16 and not rows % _BLOCK and not columns % _BLOCK

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The other set's."""
        return self._base.rms_norm(x, weight, eps)

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """The other set's."""
        return self._base.rope(q, k, cos, sin)

    def qkv_proj(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Sums in fp32 and rounds once."""
        if _is_packed(weight):
            return _linear(x, weight, bias)
        return self._base.qkv_proj(x, weight, bias)

    def kv_write(
        self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Copy each row to its slot and skip the others."""
        if k.dtype != k_cache.dtype or v.dtype != v_cache.dtype:
            return self._base.kv_write(k, v, k_cache, v_cache, slot_mapping)
        _ops.kv_write(k, v, k_cache, v_cache, slot_mapping)
        return None

    def prefill_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor,
        *,
        scale: float,
        sliding_window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Tiles of 32 queries and up to 256 keys, in one pass; hidden keys are never reached."""
        if not _can_prefill(q):
            return self._base.prefill_attention(
                q, k, v, valid, scale=scale, sliding_window=sliding_window, sinks=sinks
            )
        sinks = _in_dtype_of(q, sinks)
        out: Tensor = _ops.prefill_attention(q, k, v, valid, scale, sliding_window, sinks)
        return out

    def prefill_attention_with_prior(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        cached_seq_len: Tensor,
        *,
        scale: float,
        sliding_window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """As without a prefix, whose keys are packed from its blocks."""
        if not (_can_prefill(q) and _can_attend(q, k_cache, v_cache)):
            return self._base.prefill_attention_with_prior(
                q, k, v, valid, k_cache, v_cache, block_table, cached_seq_len,
                scale=scale, sliding_window=sliding_window, sinks=sinks,
            )  # fmt: skip
        sinks = _in_dtype_of(q, sinks)
        out: Tensor = _ops.prefill_attention_with_prior(
            q, k, v, valid, k_cache, v_cache, block_table, cached_seq_len, scale, sliding_window,
            sinks,
        )  # fmt: skip
        return out

    def packed_prefill_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_start_loc: Tensor,
        prefix: CachedPrefix | None,
        *,
        scale: float,
        sliding_window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """As with one request, and nothing is computed twice."""
        attends = prefix is None or _can_attend(q, prefix.k_cache, prefix.v_cache)
        if not (_can_prefill(q) and attends):
            return self._base.packed_prefill_attention(
                q, k, v, query_start_loc, prefix,
                scale=scale, sliding_window=sliding_window, sinks=sinks,
            )  # fmt: skip
        sinks = _in_dtype_of(q, sinks)
        out: Tensor = _ops.packed_prefill_attention(
            q, k, v, query_start_loc, *(prefix or (None, None, None, None)), scale, sliding_window,
            sinks,
        )  # fmt: skip
        return out

    def decode_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        positions: Tensor,
        *,
        scale: float,
        sliding_window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Read each row's blocks where they lie, up to its own position, in one pass."""
        if not _can_attend(q, k_cache, v_cache):
            return self._base.decode_attention(
                q, k_cache, v_cache, block_table, positions,
                scale=scale, sliding_window=sliding_window, sinks=sinks,
            )  # fmt: skip
        sinks = _in_dtype_of(q, sinks)
        out: Tensor = _ops.decode_attention(
            q, k_cache, v_cache, block_table, positions, scale, sliding_window, sinks
        )
        return out

    def o_proj(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Sums in fp32 and rounds once."""
        if _is_packed(weight):
            return _linear(x.flatten(1), weight, bias)
        return self._base.o_proj(x, weight, bias)

    def mlp(
        self,
        x: Tensor,
        gate_weight: Tensor,
        up_weight: Tensor,
        down_weight: Tensor,
        gate_bias: Tensor | None = None,
        up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> Tensor:
        """One call; only what stands between the two products is rounded."""
        weights = (gate_weight, up_weight, down_weight)
        if all(map(_is_packed, weights)):
            mlp = _ops.mlp_int8 if gate_weight.dtype == torch.int8 else _ops.mlp
            out: Tensor = mlp(x, *weights, gate_bias, up_bias, down_bias)
            return out
        return self._base.mlp(x, *weights, gate_bias, up_bias, down_bias)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Sums in fp32 and rounds once."""
        if _is_packed(weight):
            return _linear(x, weight, bias)
        return self._base.linear(x, weight, bias)

    def top_k(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The other set's."""
        return self._base.top_k(logits, k)


def _is_packed(weight: Tensor) -> bool:
    return weight.dim() == 4 or weight.dtype == torch.int8


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    linear = _ops.linear_int8 if weight.dtype == torch.int8 else _ops.linear
    out: Tensor = linear(x, weight, bias)
    return out


def _in_dtype_of(q: Tensor, sinks: Tensor | None) -> Tensor | None:
    return None if sinks is None else sinks.to(q.dtype)


def _can_prefill(q: Tensor) -> bool:
    return q.dtype == torch.bfloat16 and q.shape[-1] % _BLOCK == 0


def _can_attend(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> bool:
    one_dtype = q.dtype == k_cache.dtype == v_cache.dtype
    return one_dtype and q.dtype in (torch.float32, torch.bfloat16) and q.shape[-1] % _BLOCK == 0
