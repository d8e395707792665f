# SPDX-License-Identifier: Apache-2.0
"""Projections around attention: QKV before it, output after it."""

from __future__ import annotations

import torch

from tests.adapters.nki.outside.library import Library, Pairs, as_numpy, as_torch


def output_tkg(
    library: Library, *, bias: bool = False, d: int = 128, transpose: bool = False
) -> Pairs:
    """Project attention [D, B, N, S] of a few tokens."""
    heads, hidden = 3, 1024
    # Transposed output: with fewer tokens the kernel makes access patterns that leave their tensor
    # and are not used; the simulator refuses a pattern when it is made.
    rows, seq = (32, 4) if transpose else (5, 1)
    attention = library.normal(d, rows, heads, seq)
    weight = library.normal(heads * d, hidden, scale=(heads * d) ** -0.5)
    row = library.normal(1, hidden) if bias else None
    kernel = library.module("core.output_projection.output_projection_tkg").output_projection_tkg
    reference = library.module(
        "core.output_projection.output_projection_tkg_torch"
    ).output_projection_tkg_torch_ref
    got = library.simulate(kernel, attention, weight, row, TRANSPOSE_OUT=transpose)
    want = reference(attention, weight, row)["out"]
    if transpose:  # the library's reference assumes two cores whenever the size allows them
        lnc = library.lnc
        want = want.reshape(rows * seq, lnc, 128, -1).permute(2, 1, 3, 0)
    return {"out": (got, want)}


def output_cte(library: Library, *, s: int = 512, bias: bool = False) -> Pairs:
    """Project attention [B, N, D, S] of a prompt."""
    heads, d, hidden = 3, 64, 512
    attention = library.normal(1, heads, d, s)
    weight = library.normal(heads * d, hidden, scale=(heads * d) ** -0.5)
    row = library.normal(1, hidden) if bias else None
    place = "core.output_projection.output_projection_cte.output_projection_cte"
    kernel = library.module(place).output_projection_cte
    reference = library.module(f"{place}_torch").output_projection_cte_torch_ref
    got = library.simulate(kernel, attention, weight, row)
    return {"out": (got, reference(attention, weight, row))}


def qkv(
    library: Library,
    *,
    seq: int,
    batch: int = 1,
    norm: str = "NO_NORM",
    add: bool = False,
    bias: bool = False,
    layout: str = "BSD",
    d: int = 64,
) -> Pairs:
    """Project [B, S, H] to q, k and v; the kernel picks its short or long variant by B*S."""
    hidden, heads = 512, (4, 1)
    width = (heads[0] + 2 * heads[1]) * d
    types = library.module("core.utils.common_types")
    x = library.normal(batch, seq, hidden)
    weight = library.normal(hidden, width, scale=hidden**-0.5)
    gamma = library.normal(1, hidden) if norm != "NO_NORM" else None
    beta = library.normal(1, hidden) if norm == "LAYER_NORM" else None
    row = library.normal(1, width) if bias else None
    before = [library.normal(batch, seq, hidden) for _ in range(2)] if add else [None, None]
    chosen = types.QKVOutputLayout[layout]
    got = library.simulate(
        library.module("core.qkv.qkv").qkv,
        x,
        weight,
        output_layout=chosen,
        bias=row,
        fused_residual_add=add,
        mlp_prev=before[0],
        attention_prev=before[1],
        fused_norm_type=types.NormType[norm],
        gamma_norm_weights=gamma,
        layer_norm_bias=beta,
        d_head=d,
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
    )
    want = library.module("core.qkv.qkv_tkg_torch").qkv_tkg_torch_ref(
        x,
        weight,
        norm_w=gamma,
        norm_bias=beta,
        fused_add=add,
        mlp_prev=before[0],
        attn_prev=before[1],
        d_head=d,
        output_layout=chosen,
        norm_type=types.NormType[norm],
        qkv_bias=row,
    )
    results = got if isinstance(got, tuple | list) else (got,)
    pairs = {"out": (results[0], want["out"])}
    if len(results) > 1:
        pairs["residual"] = (results[1], want["fused_hidden"])
    return pairs


def qkv_rope(library: Library) -> Pairs:
    """Project a prompt and rotate q and k; the reference for the rotation is plain torch."""
    seq, hidden, d, heads = 256, 512, 64, (4, 1)
    x = library.normal(1, seq, hidden)
    weight = library.normal(hidden, (heads[0] + 2 * heads[1]) * d, scale=hidden**-0.5)
    angles = torch.arange(seq)[:, None] * 10000.0 ** -(torch.arange(d // 2) / (d // 2))
    cos, sin = (f(angles.repeat(1, 2))[None].to(x.dtype) for f in (torch.cos, torch.sin))
    got = library.simulate(
        library.module("core.qkv.qkv").qkv,
        x,
        weight,
        fused_rope=True,
        cos_cache=cos,
        sin_cache=sin,
        d_head=d,
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
    )
    plain = (x.float() @ weight.float()).reshape(1, seq, -1, d)
    rotated = heads[0] + heads[1]
    left, right = plain[:, :, :rotated].chunk(2, dim=-1)
    c, s = cos.float()[:, :, None], sin.float()[:, :, None]
    turned = plain[:, :, :rotated] * c + torch.cat((-right, left), dim=-1) * s
    want = torch.cat((turned, plain[:, :, rotated:]), dim=2).reshape(1, seq, -1)
    return {"out": (got, want)}


def output_tkg_fp8(library: Library) -> Pairs:
    """Project attention with an fp8 weight that has a scale per column."""
    heads, d, hidden = 2, 128, 1024
    attention = library.normal(d, 5, heads, 1)
    narrow, weight = library.normal_fp8(heads * d, hidden)
    scales = library.normal(1, hidden, dtype="float32").abs().repeat(128, 1) / 16
    kind = library.module("core.utils.common_types").QuantizationType.ROW
    place = "core.output_projection.output_projection_tkg"
    got = library.simulate(
        library.module(place).output_projection_tkg,
        as_numpy(attention),
        narrow,
        quantization_type=kind,
        weight_scale=scales.numpy(),
    )
    reference = library.module(f"{place}_torch").output_projection_tkg_torch_ref
    want = reference(attention, weight, quantization_type=kind, weight_scale=scales)
    return {"out": (as_torch(got), want["out"])}


def qkv_tkg_fp8(library: Library) -> Pairs:
    """Project a few tokens, normalised, with an fp8 weight that has a scale per column."""
    hidden, width = 512, 384
    x, gamma = library.normal(4, 1, hidden), library.normal(1, hidden)
    narrow, weight = library.normal_fp8(hidden, width)
    scales = library.normal(1, width, dtype="float32").abs().repeat(128, 1) / 16
    types = library.module("core.utils.common_types")
    settings = {
        "quantization_type": types.QuantizationType.ROW,
        "d_head": 64,
        "num_q_heads": 4,
        "num_kv_heads": 1,
    }
    got = library.simulate(
        library.module("core.qkv.qkv").qkv,
        as_numpy(x),
        narrow,
        fused_norm_type=types.NormType.RMS_NORM,
        gamma_norm_weights=as_numpy(gamma),
        qkv_w_scale=scales.numpy(),
        **settings,
    )
    want = library.module("core.qkv.qkv_tkg_torch").qkv_tkg_torch_ref(
        x, weight, norm_w=gamma, qkv_w_scale=scales, **settings
    )
    return {"out": (as_torch(got), want["out"])}
