# SPDX-License-Identifier: Apache-2.0
"""Enter and leave the tensor-parallel part of a layer."""

from __future__ import annotations

from torch import Tensor

from trnport.core.metadata import AttentionMetadata
from trnport.core.parallel.group import Group


def gather_tokens(x: Tensor, tp: Group, metadata: AttentionMetadata) -> Tensor:
    """Give every rank all tokens.

    Args:
        x: ``[T/tp, H]`` in prefill (sequence parallel), ``[B, H]`` in decode.
        tp: The tensor-parallel group.
        metadata: Tells the phase.

    Returns:
        ``[T, H]``, or ``x`` itself in decode.
    """
    return x if metadata.is_decode else tp.all_gather(x, dim=0)


def reduce_tokens(x: Tensor, tp: Group, metadata: AttentionMetadata) -> Tensor:
    """Sum the ranks' partial results and return to the residual stream's layout.

    Args:
        x: ``[T, H]`` partial sums.
        tp: The tensor-parallel group.
        metadata: Tells the phase.

    Returns:
        ``[T/tp, H]`` in prefill, ``[B, H]`` in decode.
    """
    return tp.all_reduce(x) if metadata.is_decode else tp.reduce_scatter(x, dim=0)
