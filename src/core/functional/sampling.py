# SPDX-License-Identifier: Apache-2.0
"""Choose tokens from vocabulary-sharded logits: greedy, temperature, top-k, top-p.

Traceable: no shape and no branch depends on data. No rank ever holds a whole row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trnport.core.functional.random import gumbel
from trnport.core.functional.selection import keep_largest, ordered
from trnport.core.metadata import SamplingInputs
from trnport.core.parallel.group import Group
from trnport.core.ports.kernels import Kernels

_MASS_BITS = 36
"""Probability masses are integers in units of 2**-36 of the largest one."""

_FRACTION_BITS = 24
"""top_p is an integer in units of 2**-24, the resolution of fp32 just below 1."""


def argmax(scores: Tensor, first: int, kernels: Kernels, tp: Group) -> tuple[Tensor, Tensor]:
    """Largest entry of each sharded row, the lowest index among equals.

    Args:
        scores: ``[B, C]`` fp32, this rank's shard.
        first: Index of its first column in the whole row.
        kernels: Operators.
        tp: The ranks that share the rows.

    Returns:
        Values ``[B]`` fp32 and indices ``[B]`` int64 into the whole row.
    """
    values, indices = kernels.top_k(scores, 1)
    if tp.world_size == 1:
        return values[:, 0], indices[:, 0]
    values = tp.all_gather(values, dim=1)
    indices = tp.all_gather(indices + first, dim=1)
    # Ranks hold ascending parts of the vocabulary: the first rank among equals is the lowest.
    best, rank = kernels.top_k(values, 1)
    return best[:, 0], indices.gather(1, rank)[:, 0]


def sample(
    logits: Tensor, inputs: SamplingInputs, first: int, kernels: Kernels, tp: Group
) -> Tensor:
    """Draw one token for each row.

    Args:
        logits: ``[B, C]`` fp32, this rank's shard, minus infinity where a token is forbidden.
        inputs: How to sample each row.
        first: Index of the shard's first column in the whole row.
        kernels: Operators.
        tp: The ranks that share the rows.

    Returns:
        ``[B]`` int64, equal on all ranks.
    """
    top_k, top_p, temperature = inputs.sampler_params.unbind(-1)
    greedy = (temperature == 0)[:, None]
    keys = ordered(logits)
    allowed = logits > -torch.inf
    kept = allowed & keep_largest(keys, allowed.long(), top_k.long().clamp(min=1), tp)

    largest, _ = argmax(logits, first, kernels, tp)
    # The largest is subtracted first: nothing overflows, however small the temperature.
    scores = (logits - largest[:, None]) / torch.where(greedy, 1, temperature[:, None])
    scores = torch.where(kept, scores, -torch.inf)
    masses = (scores.exp() * 2.0**_MASS_BITS).long()
    nucleus = keep_largest(keys, masses, _share(tp.all_reduce(masses.sum(-1)), top_p), tp)
    kept = kept & (nucleus | (top_p >= 1)[:, None])

    tokens = torch.arange(first, first + logits.shape[-1], device=logits.device)
    # The largest of log p + Gumbel noise is distributed as a draw from p.
    drawn = torch.where(kept, scores + gumbel(inputs.random_keys, tokens), -torch.inf)
    return argmax(torch.where(greedy, logits, drawn), first, kernels, tp)[1]


def _share(total: Tensor, fraction: Tensor) -> Tensor:
    """``[B]`` int64: ``total * fraction``, in integers alone, at least 1.

    The high and the low bits of ``total`` are multiplied apart, so that nothing overflows.
    """
    numerator = (fraction * 2.0**_FRACTION_BITS).long()
    high, low = total >> _FRACTION_BITS, total & ((1 << _FRACTION_BITS) - 1)
    return (high * numerator + ((low * numerator) >> _FRACTION_BITS)).clamp(min=1)
