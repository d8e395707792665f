# SPDX-License-Identifier: Apache-2.0
"""The Kernels port in plain PyTorch.

Nothing here branches on a tensor's values, so every operator compiles as one graph.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trnport.adapters.torch_cpu import attention, elementwise, paging, ranking
from trnport.core.ports.kernels import Kernels


class TorchCpuKernels(Kernels):
    """Reference operators: the port's shapes and promises, on any device torch has.

    Normalisation and softmax are computed in fp32 whatever the dtype.
    """

    name = "torch_cpu"

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Normalise in fp32, cast back, then scale, as Transformers' Llama does."""
        return elementwise.rms_norm(x, weight, eps)

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate in the wider dtype of ``q`` and ``cos``."""
        cos, sin = cos[:, None], sin[:, None]
        return elementwise.rotate(q, cos, sin), elementwise.rotate(k, cos, sin)

    def qkv_proj(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """One matrix product."""
        return _project(x, weight, bias)

    def kv_write(
        self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Scatter rows by block and offset; see :func:`paging.write_slots` for slot -1."""
        paging.write_slots(k, k_cache, slot_mapping)
        paging.write_slots(v, v_cache, slot_mapping)

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
        """Masked attention of the chunk over itself."""
        own = attention.Keys.of_chunk(k, v, valid)
        return attention.chunk_attention(q, own, scale, sliding_window, sinks)

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
        """Gather the prefix's blocks, then masked attention over prefix and chunk."""
        start = cached_seq_len.reshape(())
        prior = attention.Keys.of_cache(k_cache, v_cache, block_table, start - 1, q.dtype)
        own = attention.Keys.of_chunk(k, v, valid, start)
        keys = prior.followed_by(own)
        return attention.chunk_attention(q, keys, scale, sliding_window, sinks, start)

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
        """Gather each row's blocks, then masked attention of its one query."""
        keys = attention.Keys.of_cache(k_cache, v_cache, block_table, positions, q.dtype)
        return attention.row_attention(q, positions, keys, scale, sliding_window, sinks)

    def o_proj(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """One matrix product over heads and dimensions."""
        return _project(x.flatten(1), weight, bias)

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
        """Three matrix products around a gated SiLU."""
        gate = F.silu(_project(x, gate_weight, gate_bias))
        return _project(gate * _project(x, up_weight, up_bias), down_weight, down_bias)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """One matrix product."""
        return _project(x, weight, bias)

    def top_k(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Select by value, then by index."""
        return ranking.top_k(logits, k)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight if bias is None else torch.addmm(bias, x, weight)
