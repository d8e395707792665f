# SPDX-License-Identifier: Apache-2.0
"""Why a kernel cannot take a call: each function returns the reason, or ""."""

from __future__ import annotations

import torch
from torch import Tensor

from trnport.adapters.nki.limits import CACHES, FLOATS, too_large

PIECE = 16384
EIGHT = 8


def norm_reason(x: Tensor, weight: Tensor) -> str:
    """For ``rms_norm``."""
    return _dtype(x.dtype, weight.dtype) or too_large("rms_norm", hidden=x.shape[-1])


def rope_reason(q: Tensor, k: Tensor) -> str:
    """For ``rope``."""
    widest = max(x.shape[1] * x.shape[2] for x in (q, k))
    return _dtype(q.dtype, k.dtype) or too_large("rope", heads_times_dim=widest)


def product_reason(operator: str, x: Tensor, weight: Tensor) -> str:
    """For the operators that are one matrix product."""
    reason = _dtype(x.dtype, weight.dtype) or _layout(weight)
    return reason or too_large(operator, inputs=x.shape[-1])


def mlp_reason(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> str:
    """For ``mlp``."""
    reason = _dtype(x.dtype, gate.dtype, up.dtype, down.dtype) or _layout(gate, up, down)
    return reason or too_large("mlp", hidden_and_intermediate=sum(gate.shape))


def write_reason(k: Tensor, k_cache: Tensor, v_cache: Tensor) -> str:
    """For ``kv_write``."""
    slots = k_cache.shape[0] * k_cache.shape[2]
    return (
        _dtype(k.dtype)
        or _cache(k_cache, v_cache)
        or too_large("kv_write", slots=slots, heads_times_dim=k.shape[1] * k.shape[2])
    )


def attention_reason(
    q: Tensor,
    scale: float,
    k_cache: Tensor | None = None,
    v_cache: Tensor | None = None,
    block_table: Tensor | None = None,
) -> str:
    """For ``prefill_attention``, and with a cache for ``decode_attention``."""
    reason = _dtype(q.dtype) or _scale(scale)
    if k_cache is None or v_cache is None or block_table is None:
        return reason or too_large(
            "prefill_attention",
            head_dim=q.shape[2],
            keys_times_dim=_key_elements(q.shape[0], q.shape[2]),
        )
    block_size = k_cache.shape[2]
    return (
        reason
        or _cache(k_cache, v_cache)
        or _block_size(block_size)
        or too_large(
            "decode_attention",
            head_dim=q.shape[2],
            q_heads=q.shape[1],
            block_size=block_size,
            context=block_table.shape[1] * block_size,
        )
    )


def prior_reason(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, scale: float
) -> str:
    """For ``prefill_attention_with_prior``."""
    block_size = k_cache.shape[2]
    return (
        _dtype(q.dtype)
        or _scale(scale)
        or _cache(k_cache, v_cache)
        or _block_size(block_size)
        or too_large(
            "prefill_attention_with_prior",
            head_dim=q.shape[2],
            block_size=block_size,
            keys_times_dim=_key_elements(q.shape[0] + block_table.numel() * block_size, q.shape[2]),
        )
    )


def top_k_reason(logits: Tensor, k: int) -> str:
    """For ``top_k``."""
    if logits.dtype not in (*FLOATS, torch.float16):
        return f"dtype {logits.dtype}"
    columns = logits.shape[1]
    pieces = -(-columns // PIECE)
    candidates = pieces * -(-k // EIGHT) * EIGHT
    return too_large("top_k", columns=columns, candidates=candidates)


def _dtype(first: torch.dtype, *others: torch.dtype) -> str:
    if first not in FLOATS:
        return f"dtype {first}"
    mixed = [dtype for dtype in others if dtype != first]
    return f"dtypes {first} and {mixed[0]}" if mixed else ""


def _layout(*tensors: Tensor) -> str:
    return "" if all(x.is_contiguous() for x in tensors) else "a weight is not contiguous"


def _cache(*caches: Tensor) -> str:
    for cache in caches:
        if cache.dtype not in CACHES:
            return f"cache of {cache.dtype}"
        if not cache.is_contiguous():
            return "a cache is not contiguous"
    return ""


def _key_elements(keys: int, head_dim: int) -> int:
    """Elements of a head's keys with their dimensions padded to whole contractions."""
    return keys * -(-head_dim // 128) * 128


def _block_size(block_size: int) -> str:
    whole = block_size <= 128 or block_size % 128 == 0
    return "" if whole else "block_size above 128 and no multiple of it"


def _scale(scale: float) -> str:
    return "" if scale > 0 else "scale of 0 or less"
