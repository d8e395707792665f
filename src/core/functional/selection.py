# SPDX-License-Identifier: Apache-2.0
"""Which entries of a sharded row are among its largest, without gathering the row.

Everything is counted in integers, whose sums do not depend on an order: every number of ranks
selects the same entries of the same logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trnport.core.parallel.group import Group

_BITS = 32
_DIGIT = 8
_DIGITS = 1 << _DIGIT
_LOWEST = -(2**31)


def ordered(values: Tensor) -> Tensor:
    """Integers that compare as the floats do; -0.0 equals 0.0.

    Args:
        values: fp32, any shape.

    Returns:
        int32, same shape.
    """
    bits = (values + 0.0).view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def keep_largest(keys: Tensor, weights: Tensor, target: Tensor, tp: Group) -> Tensor:
    """Keep a row's largest entries until their weights add up to a target.

    Entries count in descending order of key, equal keys by lowest index. An entry stays
    while the weight before it is below the target.

    Args:
        keys: ``[B, C]`` int32, this rank's shard; shards follow each other in rank order.
        weights: ``[B, C]`` int64, not negative; a row's sum fits into 63 bits.
        target: ``[B]`` int64, at least 1, equal on all ranks.
        tp: The ranks that share the rows.

    Returns:
        ``[B, C]`` bool.
    """
    threshold = _threshold(keys, weights, target, tp)[:, None]
    above = keys > threshold
    tied = keys == threshold
    tie_weights = torch.where(tied, weights, 0)
    heavier = tp.all_reduce(torch.where(above, weights, 0).sum(-1))
    heavier = heavier + _on_lower_ranks(tie_weights.sum(-1), tp)
    before = heavier[:, None] + tie_weights.cumsum(-1) - tie_weights
    return above | (tied & (before < target[:, None]))


def _threshold(keys: Tensor, weights: Tensor, target: Tensor, tp: Group) -> Tensor:
    """``[B]`` int64: the largest key at or above which the weights reach the target.

    The smallest int32 where they never do. A radix search: each round settles one digit of the
    threshold, from the weights that every digit holds.
    """
    offset = keys.long() - _LOWEST
    threshold = torch.zeros_like(target)
    above = torch.zeros_like(target)  # weight of the keys above all that are still possible
    for shift in range(_BITS - _DIGIT, -1, -_DIGIT):
        possible = (offset >> (shift + _DIGIT)) == (threshold >> (shift + _DIGIT))[:, None]
        digits = (offset >> shift) & (_DIGITS - 1)
        sums = tp.all_reduce(_weight_by_digit(digits, torch.where(possible, weights, 0)))
        from_top = above[:, None] + sums.flip(-1).cumsum(-1).flip(-1)
        digit = ((from_top >= target[:, None]).sum(-1, keepdim=True) - 1).clamp(min=0)
        above = (from_top - sums).gather(-1, digit)[:, 0]
        threshold = threshold + (digit[:, 0] << shift)
    return threshold + _LOWEST


def _weight_by_digit(digits: Tensor, weights: Tensor) -> Tensor:
    """``[B, 256]`` int64: sum of the weights of each digit's entries."""
    sums = torch.zeros(digits.shape[0], _DIGITS, dtype=torch.int64, device=digits.device)
    return sums.scatter_add(-1, digits, weights)


def _on_lower_ranks(value: Tensor, tp: Group) -> Tensor:
    """``[B]``: sum of ``value`` over the ranks below this one."""
    if tp.world_size == 1:
        return torch.zeros_like(value)
    everyone = tp.all_gather(value[:, None], dim=1)
    return everyone[:, : tp.rank_in_group].sum(-1)
