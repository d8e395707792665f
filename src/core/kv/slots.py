# SPDX-License-Identifier: Apache-2.0
"""Slot arithmetic: slot = block_table[position // block_size] * block_size + offset."""

from __future__ import annotations

from collections.abc import Sequence

NULL_BLOCK = 0
"""vLLM's reserved block: owned by no request, never written."""

PAD_SLOT = -1
"""Slot of a padding token: its write is skipped."""


def slot_mapping(block_ids: Sequence[int], start: int, stop: int, block_size: int) -> list[int]:
    """Slots of positions ``start`` to ``stop - 1`` of one request.

    Args:
        block_ids: The request's blocks, in order of position.
        start: First position.
        stop: One past the last position.
        block_size: Positions per block.

    Returns:
        One slot per position; PAD_SLOT where the request owns no block, so that a token
        can never land in another request's memory.
    """
    return [
        block_ids[position // block_size] * block_size + position % block_size
        if position // block_size < len(block_ids)
        and block_ids[position // block_size] != NULL_BLOCK
        else PAD_SLOT
        for position in range(start, stop)
    ]
