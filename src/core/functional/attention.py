# SPDX-License-Identifier: Apache-2.0
"""Attention over a paged cache: write, then read what the phase needs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trnport.core.metadata import AttentionMetadata
from trnport.core.ports.kernels import CachedPrefix, Kernels


def attention(
    kernels: Kernels,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_cache: Sequence[Tensor],
    positions: Tensor,
    metadata: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Write the new keys and values, then attend in the step's phase.

    The table of a layer with a window starts at ``metadata.swa_kv_pos_offset``. Queries and keys
    are rotated already, so positions only tell which key is how far away, and the kernels get
    them relative to that start.

    Args:
        kernels: The Kernels port.
        q: ``[T, Hq, D]``, rotated.
        k: ``[T, Hk, D]``, rotated.
        v: ``[T, Hk, D]``.
        kv_cache: ``[k_cache, v_cache]`` of the layer.
        positions: ``[T]`` int32.
        metadata: The layer's metadata.
        scale: Multiplies the scores.
        sliding_window: Latest positions a query sees, itself included; None for all.
        sinks: ``[Hq]`` softmax sinks, or None.

    Returns:
        ``[T, Hq, D]``.
    """
    k_cache, v_cache = kv_cache
    kernels.kv_write(k, v, k_cache, v_cache, metadata.slot_mapping)
    if metadata.is_decode:
        return kernels.decode_attention(
            q, k_cache, v_cache, metadata.block_table_tensor,
            positions if sliding_window is None else positions - metadata.swa_kv_pos_offset,
            scale=scale, sliding_window=sliding_window, sinks=sinks,
        )  # fmt: skip
    if metadata.query_start_loc is not None:
        return _packed(kernels, q, k, v, kv_cache, metadata, scale, sliding_window, sinks)
    valid = metadata.slot_mapping >= 0
    if not metadata.kv_segment_size:
        return kernels.prefill_attention(
            q, k, v, valid, scale=scale, sliding_window=sliding_window, sinks=sinks
        )
    cached = metadata.cached_seq_len
    return kernels.prefill_attention_with_prior(
        q, k, v, valid, k_cache, v_cache, metadata.block_table_tensor,
        cached if sliding_window is None else cached - metadata.swa_kv_pos_offset,
        scale=scale, sliding_window=sliding_window, sinks=sinks,
    )  # fmt: skip


def _packed(
    kernels: Kernels,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_cache: Sequence[Tensor],
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None,
    sinks: Tensor | None,
) -> Tensor:
    """A chunk that holds tokens of several prompts."""
    assert metadata.query_start_loc is not None
    prefix = None
    if metadata.kv_segment_size:
        cached = metadata.cached_seq_len
        if sliding_window is not None:
            cached = cached - metadata.swa_kv_pos_offset[:, None]
        k_cache, v_cache = kv_cache
        prefix = CachedPrefix(k_cache, v_cache, metadata.block_table_tensor, cached)
    return kernels.packed_prefill_attention(
        q, k, v, metadata.query_start_loc, prefix,
        scale=scale, sliding_window=sliding_window, sinks=sinks,
    )  # fmt: skip
