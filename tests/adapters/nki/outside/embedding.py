# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings: both layouts of the library."""

from __future__ import annotations

import torch

from tests.adapters.nki.outside.library import Library, Pairs


def _angles(seq: int, half: int) -> torch.Tensor:
    """Angles [S, half] of positions 0 to S-1, with base 10000."""
    frequency = 10000.0 ** -(torch.arange(half) / half)
    return torch.arange(seq)[:, None] * frequency


def rope_hf(
    library: Library,
    *,
    dtype: str = "bfloat16",
    seq: int = 256,
    backward: bool = False,
    packed: bool = False,
) -> Pairs:
    """Rotate q [2, 3, S, 64] and k [2, 1, S, 64]."""
    q = library.normal(2, 3, seq, 64, dtype=dtype)
    k = library.normal(2, 1, seq, 64, dtype=dtype)
    angles = _angles(seq, 32).repeat(1, 2)
    cos, sin = (f(angles).to(q.dtype) for f in (torch.cos, torch.sin))
    if packed:
        tables = {"rope_cache": torch.cat((cos, sin), dim=1)}
    else:
        tables = {name: t.expand(2, seq, 64).contiguous() for name, t in
                  (("cos", cos), ("sin", sin))}  # fmt: skip
    kernel = library.module("core.embeddings.rope_hf").rope_hf
    reference = library.module("core.embeddings.rope_hf_torch").rope_hf_torch_ref
    outputs = torch.zeros_like(q), torch.zeros_like(k)
    got_q, got_k = library.simulate(kernel, q, k, *outputs, **tables, backward=backward)
    wide = {name: t.float() for name, t in tables.items()}
    want = reference(q.float(), k.float(), None, None, **wide, backward=backward)
    return {"q": (got_q, want["q_out"]), "k": (got_k, want["k_out"])}


def rope(
    library: Library,
    *,
    dtype: str = "bfloat16",
    contiguous: bool = True,
    relayout: bool = False,
    lnc_shard: bool = True,
) -> Pairs:
    """Rotate x [64, 2, 3, S]."""
    seq = 34
    x = library.normal(64, 2, 3, seq, dtype=dtype)
    angles = _angles(seq, 32).T[:, None, :].expand(32, 2, seq).contiguous()
    cos, sin = (f(angles).to(x.dtype) for f in (torch.cos, torch.sin))
    kernel = library.module("core.embeddings.rope").RoPE
    reference = library.module("core.embeddings.rope_torch").rope_torch_ref
    flags = {
        "lnc_shard": lnc_shard and library.lnc == 2,
        "contiguous_layout": contiguous,
        "relayout_in_sbuf": relayout,
    }
    got = library.simulate(kernel, x, cos, sin, **flags)
    want = reference(x.float(), cos.float(), sin.float(), **flags)
    return {"out": (got, want["x_out"])}
