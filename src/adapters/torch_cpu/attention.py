# SPDX-License-Identifier: Apache-2.0
"""Masked softmax attention that no unseen key, padding row or stale slot can touch.

Zero times NaN is NaN, so masking the scores is not enough: keys and values that must not be
seen are replaced by zeros before any product.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from trnport.adapters.torch_cpu import paging


class Keys(NamedTuple):
    """Keys and values with their positions.

    Attributes:
        k: ``[B, Hk, L, D]``, zero where not usable.
        v: Like ``k``.
        positions: ``[L]``, the same for each row.
        usable: ``[B, L]`` bool.
    """

    k: Tensor
    v: Tensor
    positions: Tensor
    usable: Tensor

    @classmethod
    def of_chunk(cls, k: Tensor, v: Tensor, valid: Tensor, start: Tensor | int = 0) -> Self:
        """The T rows of one request's chunk, from position ``start``; B is 1.

        Args:
            k: ``[T, Hk, D]``.
            v: Like ``k``.
            valid: ``[T]`` bool.
            start: Position of row 0, an integer scalar.
        """
        mask = valid[:, None, None]
        k, v = (torch.where(mask, x, 0.0).transpose(0, 1)[None] for x in (k, v))
        positions = torch.arange(len(valid), device=valid.device) + start
        return cls(k, v, positions, valid[None])

    @classmethod
    def of_cache(
        cls,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        last_position: Tensor,
        dtype: torch.dtype,
    ) -> Self:
        """Cached positions 0 to ``last_position`` of B rows, cast to ``dtype``.

        Args:
            k_cache: ``[N, Hk, S, D]``.
            v_cache: Like ``k_cache``.
            block_table: ``[B, M]`` int32.
            last_position: ``[B]``, or a scalar for all rows; -1 for nothing.
            dtype: Dtype of the query.
        """
        block_size = k_cache.shape[2]
        owned = paging.owned_slots(block_table, block_size)
        positions = torch.arange(owned.shape[1], device=owned.device)
        usable = owned & (positions <= last_position[..., None])
        unusable = ~usable[:, None, :, None]
        k, v = (paging.read_blocks(x, block_table).to(dtype) for x in (k_cache, v_cache))
        return cls(k.masked_fill_(unusable, 0.0), v.masked_fill_(unusable, 0.0), positions, usable)

    def followed_by(self, other: Keys) -> Keys:
        """These keys, then the other's, row by row."""
        return Keys(
            torch.cat([self.k, other.k], dim=2),
            torch.cat([self.v, other.v], dim=2),
            torch.cat([self.positions, other.positions]),
            torch.cat([self.usable, other.usable], dim=1),
        )

    def seen_from(self, queries: Tensor, window: int | None) -> Tensor:
        """Which keys each query may read.

        Args:
            queries: Positions ``[B, T]``.
            window: Latest positions that a query sees, itself included; None for all.

        Returns:
            ``[B, 1, T, L]`` bool.
        """
        distance = queries[:, :, None] - self.positions
        near = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        return (near & self.usable[:, None])[:, None]


def chunk_attention(
    q: Tensor,
    keys: Keys,
    scale: float,
    window: int | None,
    sinks: Tensor | None,
    start: Tensor | int = 0,
) -> Tensor:
    """Attention of one request's consecutive queries, the first at position ``start``.

    Args:
        q: ``[T, Hq, D]``.
        keys: Of one row.
        scale: Multiplies the scores.
        window: As in :meth:`Keys.seen_from`.
        sinks: ``[Hq]`` or None.
        start: An integer scalar.

    Returns:
        ``[T, Hq, D]``.
    """
    queries = torch.arange(len(q), device=q.device) + start
    seen = keys.seen_from(queries[None], window)
    q = q.transpose(0, 1)[None]
    sinks = None if sinks is None else sinks[:, None, None]
    return _attend(q, keys.k, keys.v, seen, scale, sinks)[0].transpose(0, 1)


def row_attention(
    q: Tensor,
    positions: Tensor,
    keys: Keys,
    scale: float,
    window: int | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of one query per row.

    Args:
        q: ``[B, Hq, D]``.
        positions: ``[B]``.
        keys: Of B rows.
        scale: Multiplies the scores.
        window: As in :meth:`Keys.seen_from`.
        sinks: ``[Hq]`` or None.

    Returns:
        ``[B, Hq, D]``; zeros for a row that sees no key.
    """
    seen = keys.seen_from(positions[:, None], window)
    # The query heads of one KV head become its queries, so each key is read once.
    groups = (keys.k.shape[1], -1)
    sinks = None if sinks is None else sinks.unflatten(0, groups)[..., None]
    return _attend(q.unflatten(1, groups), keys.k, keys.v, seen, scale, sinks).flatten(1, 2)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, sinks: Tensor | None
) -> Tensor:
    """Attention over finite keys; a query that sees nothing gives zeros, even one of NaN.

    Args:
        q: ``[B, Hq, T, D]``; NaN in one query stays in its own output.
        k: ``[B, Hk, L, D]``; query head h reads KV head ``h // (Hq // Hk)``.
        v: Like ``k``.
        seen: ``[B, 1, T, L]`` bool.
        scale: Multiplies the scores.
        sinks: ``[Hq, T or 1, 1]`` or None.

    Returns:
        ``[B, Hq, T, D]``.
    """
    sees_any = seen.any(-1, keepdim=True)
    dtype, head_dim = q.dtype, q.shape[-1]
    if sinks is not None:
        q, k, v, seen = _with_sink_key(q, k, v, seen, sinks.float() / scale)
    grouped = k.shape[1] != q.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=grouped)
    return torch.where(sees_any, out[..., :head_dim].to(dtype), 0.0)


def _with_sink_key(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, sinks: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Express the sink as one more key, so that fused attention serves it.

    Each query gets one more dimension holding its sink logit; only the added key, whose value
    is zero, has a one there. In fp32, because a sink rounded to bf16 would shift every weight.
    """
    q, k, v = q.float(), k.float(), v.float()
    sinks = sinks.clamp(min=torch.finfo(sinks.dtype).min)  # -inf times zero would be NaN
    q = torch.cat([q, sinks.expand(*q.shape[:-1], 1)], dim=-1)
    k, v = F.pad(k, (0, 1, 0, 1)), F.pad(v, (0, 1, 0, 1))
    is_sink = torch.arange(k.shape[2], device=k.device) == k.shape[2] - 1
    one_there = F.pad(is_sink[:, None].to(k.dtype), (k.shape[3] - 1, 0))
    return q, k + one_there, v, F.pad(seen, (0, 1), value=True)
