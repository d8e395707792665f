# SPDX-License-Identifier: Apache-2.0
"""Selection of the largest logits with a fixed order among equals."""

from __future__ import annotations

import torch
from torch import Tensor

_LOW_32 = 0xFFFFFFFF


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest per row, equal values by lowest index.

    ``torch.topk`` leaves the order of equals open and a stable sort costs a full sort, so
    value and index are packed into one integer key; keys are unique and order as wanted.

    Args:
        logits: ``[T, V]``, fp32 or narrower, V below 2**32.
        k: At most V.

    Returns:
        Values ``[T, k]`` in the dtype of ``logits``, indices ``[T, k]`` int64.
    """
    index = torch.arange(logits.shape[-1], device=logits.device)
    keys = (_ordered_bits(logits) << 32) | (_LOW_32 - index)
    indices = _LOW_32 - (keys.topk(k, dim=-1).values & _LOW_32)
    return logits.gather(-1, indices), indices


def _ordered_bits(logits: Tensor) -> Tensor:
    """Integers that compare as the floats do: negatives have their other bits inverted."""
    positive_zero = logits.float() + 0.0  # -0.0 equals 0.0, so it must get the same bits
    bits = positive_zero.view(torch.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
