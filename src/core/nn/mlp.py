# SPDX-License-Identifier: Apache-2.0
"""The gated MLP, sharded over its intermediate dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trnport.core.context import ModelContext
from trnport.core.nn.parameter import pack, parameter
from trnport.core.parallel.sharding import padded_shard_size
from trnport.core.weights import (
    WeightLoader,
    first_rank_weight_loader,
    sharding_weight_loader_with_padding,
)


class GatedMLP(nn.Module):
    """SwiGLU (Shazeer, 2020).

    An intermediate size that does not divide by the ranks is padded with zeros, which
    contribute ``silu(0) * 0 = 0``.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool,
        ctx: ModelContext,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        tp = ctx.tp.world_size
        width = padded_shard_size(intermediate_size, tp)
        self.kernels = ctx.kernels

        def shard(dim: int, transposed: bool = True) -> WeightLoader:
            return sharding_weight_loader_with_padding(
                dim, width, tp, full_size=intermediate_size, is_storage_transposed=transposed
            )

        self.gate_weight = parameter(hidden_size, width, dtype=dtype, loader=shard(1))
        self.up_weight = parameter(hidden_size, width, dtype=dtype, loader=shard(1))
        self.down_weight = parameter(width, hidden_size, dtype=dtype, loader=shard(0))
        self.gate_bias = self.up_bias = self.down_bias = None
        if bias:
            self.gate_bias = parameter(width, dtype=dtype, loader=shard(0, transposed=False))
            self.up_bias = parameter(width, dtype=dtype, loader=shard(0, transposed=False))
            # The ranks' results are summed, so one rank alone may add the bias.
            self.down_bias = parameter(hidden_size, dtype=dtype, loader=first_rank_weight_loader())

    def pack_weights(self) -> None:
        """Order the weights as the kernels read them fastest."""
        pack(self, self.kernels, "mlp", "gate_weight", "up_weight", "down_weight")

    def forward(self, x: Tensor) -> Tensor:
        """``[T, H]`` to this rank's partial sum ``[T, H]``."""
        return self.kernels.mlp(
            x, self.gate_weight, self.up_weight, self.down_weight,
            self.gate_bias, self.up_bias, self.down_bias,
        )  # fmt: skip
