# SPDX-License-Identifier: Apache-2.0
"""Reading and writing paged caches ``[N, Hk, S, D]``."""

from __future__ import annotations

import torch
from torch import Tensor


def write_slots(rows: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Write rows into their slots, in place; a slot of -1 leaves every byte as it was.

    The scatter has a static shape, so a padding row has to write *something*. It repeats the
    first real row, value and slot, which changes nothing in whatever order the writes land.
    Without any real row it rewrites slot 0 with the bytes found there.

    Args:
        rows: ``[T, Hk, D]``.
        cache: ``[N, Hk, S, D]``, mutated.
        slots: ``[T]`` int64; those that are not -1 are distinct.
    """
    block_size = cache.shape[2]
    real = slots >= 0
    first = real.int().argmax().reshape(1)
    target = torch.where(real, slots, slots[first].clamp(min=0))
    rows = rows.to(cache.dtype)
    repeated = torch.where(real.any(), rows[first], cache[0, :, 0])
    rows = torch.where(real[:, None, None], rows, repeated)
    cache.transpose(1, 2).index_put_((target // block_size, target % block_size), rows)


def read_blocks(cache: Tensor, block_table: Tensor) -> Tensor:
    """Copy the blocks of each row's table, in order of position.

    Args:
        cache: ``[N, Hk, S, D]``.
        block_table: ``[B, M]`` int32. Entry -1 reads block 0: the caller must mask it.

    Returns:
        ``[B, Hk, M * S, D]``, a new tensor in the cache's dtype.
    """
    _, heads, block_size, head_dim = cache.shape
    batch, columns = block_table.shape
    # One gather of (block, head) pairs lands in head-major order without a second copy.
    head = torch.arange(heads, device=cache.device)
    pairs = block_table.clamp(min=0).long()[:, None, :] * heads + head[:, None]
    blocks = cache.flatten(0, 1).index_select(0, pairs.flatten())
    return blocks.view(batch, heads, columns * block_size, head_dim)


def owned_slots(block_table: Tensor, block_size: int) -> Tensor:
    """Which gathered positions lie in a block that the row owns: ``[B, M * S]`` bool."""
    return (block_table >= 0).repeat_interleave(block_size, dim=1)
