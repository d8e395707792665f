# SPDX-License-Identifier: Apache-2.0
"""Choose tokens from logits on the host's CPU: the largest, or a draw."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 128
"""Tokens whose probabilities are added up before the place of a draw is looked for in them."""

_BELOW_ONE = 1 - 2.0**-53


def largest(logits: Tensor) -> Tensor:
    """Index of the largest logit of each row, the lowest among equals.

    numpy compares several numbers at a time, ten times as fast as torch's argmax; the bit
    patterns of bfloat16 can be compared as integers wherever the largest is above zero.

    Args:
        logits: ``[n, V]`` on the CPU, no NaN.

    Returns:
        ``[n]`` int64.
    """
    if logits.dtype != torch.bfloat16:
        return torch.from_numpy(np.asarray(logits.float().numpy().argmax(-1), dtype=np.int64))
    bits = logits.view(torch.int16).numpy()
    found = bits.argmax(-1)
    # Below zero larger numbers have smaller patterns, and -0.0 equals 0.0.
    others = np.flatnonzero(np.take_along_axis(bits, found[:, None], -1)[:, 0] <= 0)
    if others.size:
        found[others] = logits[torch.from_numpy(others)].float().numpy().argmax(-1)
    return torch.from_numpy(found)


def draw(scores: Tensor, generators: Mapping[int, torch.Generator]) -> Tensor:
    """Draw a token of each row from the softmax of its scores.

    The place of one random number among the running sums of the probabilities: noise for each
    token, as vLLM's own function draws it, takes ten times as long on a CPU.

    Args:
        scores: ``[n, V]`` fp32, minus infinity for tokens that are left out; of a row that
            leaves out all of them, or has NaN, any token is drawn.
        generators: Row to the generator that its number comes from; torch's own for the others.

    Returns:
        ``[n]`` int64.
    """
    num_rows, vocab_size = scores.shape
    weights = scores.new_zeros(num_rows, -(-vocab_size // CHUNK) * CHUNK)
    used = weights[:, :vocab_size]
    torch.sub(scores, scores.amax(-1, keepdim=True), out=used)
    used.exp_()
    chunks = weights.unflatten(-1, (-1, CHUNK))
    chunk, within = _find(chunks.sum(-1), _uniform(num_rows, generators))
    token, _ = _find(chunks[torch.arange(num_rows), chunk], within)
    return (chunk * CHUNK + token).clamp_(max=vocab_size - 1)


def _find(weights: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Where points of rows lie among the rows' weights.

    Args:
        weights: ``[n, m]`` fp32, at least 0, and one of each row above it.
        points: ``[n]`` fp64 from 0 to below 1, as a part of the row's sum.

    Returns:
        ``[n]`` int64, the weight that the point falls on, which is above 0; ``[n]`` fp64 from 0
        to below 1, where it falls on that.
    """
    ends = weights.cumsum(-1, dtype=torch.float64)
    targets = (points * ends[:, -1])[:, None]
    # The first end behind the target. A point just below 1 stays below the last end, so the
    # limit is for NaN alone.
    index = torch.searchsorted(ends, targets, right=True).clamp_(max=weights.shape[1] - 1)
    starts = pad(ends, (1, 0)).gather(-1, index)
    within = (targets - starts) / (ends.gather(-1, index) - starts)
    return index[:, 0], within[:, 0].clamp(0, _BELOW_ONE)


def _uniform(count: int, generators: Mapping[int, torch.Generator]) -> Tensor:
    """``[count]`` fp64 from 0 to below 1."""
    if len(generators) == count:
        numbers = torch.empty(count, dtype=torch.float64)
    else:
        numbers = torch.rand(count, dtype=torch.float64)
    for row, generator in generators.items():
        numbers[row] = torch.rand((), dtype=torch.float64, generator=generator)
    return numbers
