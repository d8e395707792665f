# SPDX-License-Identifier: Apache-2.0
"""The end of a model: from this rank's logits to what the engine asked for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trnport.core.context import ModelContext
from trnport.core.functional.sampling import argmax, sample
from trnport.core.metadata import ModelOutput, SamplingInputs


class Sampler:
    """Gathers logits, or chooses tokens from the shards, or both.

    Args:
        vocab_size: V, entries of the vocabulary without padding.
        columns: C, entries of each rank's shard; the last shards end in padding.
        ctx: The ports, and whether programs sample.
    """

    def __init__(self, vocab_size: int, columns: int, ctx: ModelContext) -> None:
        self.vocab_size = vocab_size
        self.columns = columns
        self.kernels = ctx.kernels
        self.tp = ctx.tp
        self.sampling = ctx.sampling

    def __call__(
        self, logits: Tensor, sampling: SamplingInputs | None, logit_mask: Tensor | None
    ) -> ModelOutput:
        """Finish a step.

        Args:
            logits: ``[B, C]``, this rank's shard.
            sampling: How to sample each row; None with ``all_greedy`` or without sampling.
            logit_mask: ``[B, V]`` bool, False for forbidden tokens; None allows all.

        Returns:
            Logits ``[B, V]`` without the mask, or None; token ids ``[B]`` int64, or None.
        """
        if self.sampling is None:
            return ModelOutput(logits=self._gather(logits))
        shard = self._forbid(logits.float(), logit_mask)
        first = self.tp.rank_in_group * self.columns
        if sampling is None:
            _, tokens = argmax(shard, first, self.kernels, self.tp)
        else:
            tokens = sample(shard, sampling, first, self.kernels, self.tp)
        gathered = self._gather(logits) if self.sampling.returns_logits else None
        # Only a row of NaN can win in the padding.
        return ModelOutput(logits=gathered, token_ids=tokens.clamp(max=self.vocab_size - 1))

    def _gather(self, logits: Tensor) -> Tensor:
        return self.tp.all_gather(logits, dim=1)[:, : self.vocab_size]

    def _forbid(self, shard: Tensor, mask: Tensor | None) -> Tensor:
        """Minus infinity for padding columns and for what the mask leaves out."""
        first = self.tp.rank_in_group * self.columns
        real = max(0, min(self.columns, self.vocab_size - first))
        allowed = torch.arange(self.columns, device=shard.device) < real
        if mask is not None:
            mine = mask[:, first : first + real]
            allowed = allowed & F.pad(mine, (0, self.columns - real))
        return torch.where(allowed, shard, -torch.inf)
