# SPDX-License-Identifier: Apache-2.0
"""Slot arithmetic: slot = block_table[position // block_size] * block_size + offset."""

from __future__ import annotations

from collections.abc import Sequence

NULL_BLOCK = 0
"""vLLM's reserved block: owned by no request, never written."""

PAD_SLOT = -1
"""Slot of a padding token: its write is skipped."""


def slot_of(block_ids: Sequence[int], position: int, block_size: int) -> int:
    """Slot of one position of a request.

    Args:
        block_ids: The request's blocks, in order of position.
        position: From 0.
        block_size: Positions per block.

    Returns:
        PAD_SLOT where the request owns no block, so that a token can never land in another
        request's memory.
    """
    column, offset = divmod(position, block_size)
    if column >= len(block_ids) or block_ids[column] == NULL_BLOCK:
        return PAD_SLOT
    return block_ids[column] * block_size + offset


def slot_mapping(block_ids: Sequence[int], start: int, stop: int, block_size: int) -> list[int]:
    """Slots of positions ``start`` to ``stop - 1`` of one request.

    Args:
        block_ids: The request's blocks, in order of position.
        start: First position.
        stop: One past the last position.
        block_size: Positions per block.

    Returns:
        One slot per position, as :func:`slot_of` gives it.
    """
    slots: list[int] = []
    while start < stop:
        end = min(stop, (start // block_size + 1) * block_size)  # of the block, or the run in it
        slot, count = slot_of(block_ids, start, block_size), end - start
        slots += [PAD_SLOT] * count if slot == PAD_SLOT else range(slot, slot + count)
        start = end
    return slots
