# SPDX-License-Identifier: Apache-2.0
"""Embedding and LM head, sharded over the vocabulary.

A vocabulary that does not divide by the ranks is padded: the last ranks hold rows of zeros
that no token id reaches and whose logits are cut off.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trnport.core.context import ModelContext
from trnport.core.metadata import ModelOutput, SamplingInputs
from trnport.core.nn.parameter import pack, parameter
from trnport.core.nn.sampler import Sampler
from trnport.core.parallel.sharding import padded_shard_size
from trnport.core.weights import sharding_weight_loader_with_padding


class VocabDimShardedEmbedding(nn.Module):
    """Looks up the rows of this rank's vocabulary range; the ranks' results are summed."""

    def __init__(
        self, vocab_size: int, hidden_size: int, ctx: ModelContext, dtype: torch.dtype
    ) -> None:
        super().__init__()
        tp = ctx.tp.world_size
        self.rows = padded_shard_size(vocab_size, tp)
        self.first = ctx.tp.rank_in_group * self.rows
        self.weight = parameter(
            self.rows,
            hidden_size,
            dtype=dtype,
            loader=sharding_weight_loader_with_padding(0, self.rows, tp, full_size=vocab_size),
        )

    def forward(self, input_ids: Tensor) -> Tensor:
        """``[T]`` ids to this rank's partial sum ``[T, hidden_size]``: zeros for others' ids."""
        local = input_ids - self.first
        mine = (local >= 0) & (local < self.rows)
        rows = F.embedding(torch.where(mine, local, 0), self.weight)
        return torch.where(mine[:, None], rows, torch.zeros_like(rows))


class LMHead(nn.Module):
    """Vocabulary-sharded projection to logits, and the sampling of tokens from them."""

    def __init__(
        self, hidden_size: int, vocab_size: int, ctx: ModelContext, dtype: torch.dtype
    ) -> None:
        super().__init__()
        tp = ctx.tp.world_size
        columns = padded_shard_size(vocab_size, tp)
        self.vocab_size = vocab_size
        self.tp = ctx.tp
        self.kernels = ctx.kernels
        self.sampler = Sampler(vocab_size, columns, ctx)
        self.weight = parameter(
            hidden_size,
            columns,
            dtype=dtype,
            loader=sharding_weight_loader_with_padding(
                1, columns, tp, full_size=vocab_size, is_storage_transposed=True
            ),
        )

    def pack_weights(self) -> None:
        """Order the weights as the kernels read them fastest."""
        pack(self, self.kernels, "linear", "weight")

    def forward(self, x: Tensor) -> Tensor:
        """``[n, hidden_size]`` to ``[n, vocab_size]``, gathered over the ranks."""
        logits = self.kernels.linear(x, self.weight)
        return self.tp.all_gather(logits, dim=1)[:, : self.vocab_size]

    def sample(
        self,
        x: Tensor,
        sampling: SamplingInputs | None = None,
        logit_mask: Tensor | None = None,
    ) -> ModelOutput:
        """What a model returns for the rows to sample: logits, tokens or both, as configured.

        Args:
            x: ``[B, hidden_size]``.
            sampling: The model's argument ``sampling_params``.
            logit_mask: The model's argument of that name.
        """
        return self.sampler(self.kernels.linear(x, self.weight), sampling, logit_mask)
