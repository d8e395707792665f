# SPDX-License-Identifier: Apache-2.0
"""The two projections of attention, sharded over heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trnport.core.context import ModelContext
from trnport.core.nn.parameter import pack, parameter
from trnport.core.parallel.sharding import HeadSharding
from trnport.core.weights import (
    first_rank_weight_loader,
    gqa_qkv_weight_loader,
    sharding_weight_loader,
)


class QKVProjection(nn.Module):
    """Fused projection to this rank's query, key and value heads."""

    def __init__(
        self,
        hidden_size: int,
        heads: HeadSharding,
        head_dim: int,
        bias: bool,
        ctx: ModelContext,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.split = [heads.heads_per_rank] + 2 * [heads.kv_heads_per_rank]
        self.kernels = ctx.kernels
        columns = sum(self.split) * head_dim
        self.weight = parameter(
            hidden_size,
            columns,
            dtype=dtype,
            loader=gqa_qkv_weight_loader(heads, head_dim, is_storage_transposed=True),
        )
        self.bias = (
            parameter(columns, dtype=dtype, loader=gqa_qkv_weight_loader(heads, head_dim))
            if bias
            else None
        )

    def pack_weights(self) -> None:
        """Order the weights as the kernels read them fastest."""
        pack(self, self.kernels, "qkv_proj", "weight")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``[T, H]`` to q ``[T, Hq, D]``, k ``[T, Hk, D]`` and v ``[T, Hk, D]``."""
        qkv = self.kernels.qkv_proj(x, self.weight, self.bias)
        q, k, v = qkv.view(x.shape[0], -1, self.head_dim).split(self.split, dim=1)
        return q, k, v


class OutputProjection(nn.Module):
    """Projection of this rank's heads back to the residual stream, a partial sum."""

    def __init__(
        self,
        hidden_size: int,
        heads: HeadSharding,
        head_dim: int,
        bias: bool,
        ctx: ModelContext,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        rows = heads.heads_per_rank * head_dim
        self.kernels = ctx.kernels
        self.weight = parameter(
            rows,
            hidden_size,
            dtype=dtype,
            loader=sharding_weight_loader(0, rows, heads.tp, is_storage_transposed=True),
        )
        # The ranks' results are summed, so one rank alone may add the bias.
        self.bias = (
            parameter(hidden_size, dtype=dtype, loader=first_rank_weight_loader()) if bias else None
        )

    def pack_weights(self) -> None:
        """Order the weights as the kernels read them fastest."""
        pack(self, self.kernels, "o_proj", "weight")

    def forward(self, x: Tensor) -> Tensor:
        """``[T, Hq, D]`` to this rank's partial sum ``[T, H]``."""
        return self.kernels.o_proj(x, self.weight, self.bias)
