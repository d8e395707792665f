# SPDX-License-Identifier: Apache-2.0
"""Which cache slots an attention operator reads."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor


@attrs.frozen(eq=False)
class CacheReads:
    """The cache's part in one call.

    Attributes:
        slots: ``[R]`` int64, the slots that some row reads.
        unbacked: (row, position) pairs that a row would read and no block holds.
    """

    slots: Tensor
    unbacked: list[tuple[int, int]]


def cache_reads(operator: str, arguments: dict[str, Any], window: int | None) -> CacheReads:
    """Find the slots that "decode_attention" or "prefill_attention_with_prior" reads.

    Args:
        operator: One of the two.
        arguments: Its arguments by parameter name.
        window: Latest positions that count, a query's own included; None for all.
    """
    table = arguments["block_table"].long()
    block_size = arguments["k_cache"].shape[2]
    rows = []
    unbacked = []
    for row, (first, last) in enumerate(_ranges(operator, arguments, window)):
        if (table[row] < 0).all():
            if operator != "decode_attention" and last >= first:
                unbacked.append((row, first))
            continue  # a padding row
        positions = torch.arange(first, last + 1)
        held = positions < table.shape[1] * block_size
        blocks = torch.full_like(positions, -1)
        blocks[held] = table[row, positions[held] // block_size]
        unbacked += [(row, p) for p in positions[blocks < 0].tolist()]
        rows.append((blocks * block_size + positions % block_size)[blocks >= 0])
    return CacheReads(torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64), unbacked)


def padding_rows(block_table: Tensor) -> Tensor:
    """Rows of a decode batch that stand for nothing: ``[B]`` bool."""
    return (block_table < 0).all(dim=1)


def _ranges(operator: str, arguments: dict[str, Any], window: int | None) -> list[tuple[int, int]]:
    """First and last cached position that each row reads."""
    if operator == "decode_attention":
        queries = arguments["positions"].tolist()
        lasts = queries
    else:  # the chunk's first query sees furthest back
        queries = arguments["cached_seq_len"].flatten().tolist()
        lasts = [query - 1 for query in queries]
    firsts = [0 if window is None else max(0, query - window + 1) for query in queries]
    return list(zip(firsts, lasts, strict=True))
