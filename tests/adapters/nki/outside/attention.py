# SPDX-License-Identifier: Apache-2.0
"""Attention of prompts and of single tokens."""

from __future__ import annotations

from typing import Any

import torch

from tests.adapters.nki.outside.library import Library, Pairs


def cte(
    library: Library,
    *,
    batch: int = 2,
    kv: int | None = None,
    seq: int = 256,
    d: int = 128,
    causal: bool = True,
    sink: bool = False,
    window: int = 0,
    prior: int = 0,
    used: int = 0,
    transposed: bool = False,
    packed: tuple[int, ...] = (),
) -> Pairs:
    """Attention of q [B, S, D] over k and v [Bkv, S, D], q and k scaled before."""
    kv = kv or batch
    q = library.normal(batch, seq, d, scale=d**-0.5)
    k, v = library.normal(kv, d, seq), library.normal(kv, seq, d)
    arrays: dict[str, Any] = {}
    flags: dict[str, Any] = {"causal_mask": causal, "sliding_window": window}
    if transposed:
        q, k = q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous()
        flags |= {"tp_q": False, "tp_k": True, "tp_out": True}
    if sink:
        arrays["sink"] = library.normal(batch, 1)
    if prior:
        arrays["k_prior"] = library.normal(kv, d, prior)
        arrays["v_prior"] = library.normal(kv, prior, d)
        arrays["prior_used_len"] = torch.tensor([used], dtype=torch.int32)
    if packed:
        starts = torch.zeros(seq, 1)
        ends = torch.zeros(seq, 1)
        begin = 0
        for end in packed:
            starts[begin:end], ends[begin:end] = begin, end
            begin = end
        arrays["bound_min"], arrays["bound_max"] = starts, ends
    kernel = library.module("core.attention.attention_cte").attention_cte
    reference = library.module("core.attention.attention_cte_torch").attention_cte_torch_ref
    got = library.simulate(kernel, q, k, v, **arrays, **flags)
    return {"out": (got, reference(q, k, v, **arrays, **flags))}


def _mask(library: Library, prior: int, batch: int, heads: int, active: int) -> torch.Tensor:
    """Mask [S, B, N, s]: each sequence has its own length; the last columns are the new tokens."""
    lengths = library.generator.integers(1, prior - active, batch)
    positions = torch.arange(prior)[:, None, None, None]
    mask = (positions < torch.from_numpy(lengths)[None, :, None, None]).expand(
        prior, batch, heads, active
    ).clone()  # fmt: skip
    mask[-active:] = torch.tril(torch.ones(active, active)).T[:, None, None, :].bool()
    return mask.to(torch.uint8)


def tkg(
    library: Library,
    *,
    batch: int = 4,
    heads: int = 3,
    active: int = 1,
    prior: int = 512,
    d: int = 128,
    rope: bool = False,
    tp: bool = False,
    sink: bool = False,
    block: int = 0,
    strided: bool = True,
    positions: bool = False,
) -> Pairs:
    """Attention of a few new tokens over a cache, flat or in blocks."""
    utils = library.module("core.attention.attention_tkg_utils")
    module = library.module("core.attention.attention_tkg")
    cfg = utils.AttnTKGConfig(
        bs=batch, q_head=heads, s_active=active, curr_sprior=prior, full_sprior=prior, d_head=d,
        block_len=block, tp_k_prior=tp, strided_mm1=strided, fuse_rope=rope, qk_in_sb=not rope,
        use_pos_id=positions,
    )  # fmt: skip
    scale = 1.0 if rope else d**-0.5
    shape_q = (batch, heads, active, d) if rope else (d, batch * heads * active)
    shape_k = (batch, 1, active, d) if rope else (d, batch * active)
    inputs: dict[str, Any] = {
        "q": library.normal(*shape_q, scale=scale),
        "k_active": library.normal(*shape_k),
        "v_active": library.normal(batch, 1, active, d),
        "mask": _mask(library, prior, batch, heads, active),
    }
    if block:
        count = prior // block
        shape: tuple[int, ...] = (batch * count + 3, block, d)
        inputs["k_prior"], inputs["v_prior"] = library.normal(*shape), library.normal(*shape)
        order = library.generator.permutation(batch * count + 3)[: batch * count]
        blocks = torch.from_numpy(order.reshape(batch, count))
        inputs["active_blocks_table"] = blocks.to(torch.int32).view(torch.uint32)
        inputs["mask"] = _blockwise(inputs["mask"], utils, cfg, library.lnc)
    else:
        shape = (batch, 1, prior, d) if tp else (batch, 1, d, prior)
        inputs["k_prior"] = library.normal(*shape)
        inputs["v_prior"] = library.normal(batch, 1, prior, d)
    if rope or positions:
        first = library.integers(1, prior - active, batch, 1)
        inputs["rope_pos_ids"] = (first + torch.arange(active)).float()
    if rope:
        inputs["inv_freqs"] = (10000.0 ** -(torch.arange(d // 2) / (d // 2)))[:, None].float()
    if positions:
        new = torch.tril(torch.ones(active, active)).T[:, None, None, :]
        inputs["mask"] = new.expand(active, batch, heads, active).contiguous().to(torch.uint8)
    if sink:
        inputs["sink"] = library.normal(heads, 1)
    names = list(inputs)
    results = library.simulate(_kernel(module, cfg, names), *inputs.values())
    out = torch.zeros(batch, heads, d, active)
    k_out = torch.zeros(batch, 1, d, active) if rope else None
    reference = library.module("core.attention.attention_tkg_torch").attention_tkg_torch_ref
    wide = {n: t.float() if t.dtype == torch.bfloat16 else t for n, t in inputs.items()}
    if block:
        wide["active_blocks_table"] = blocks
    reference[library.lnc](**wide, out=out, cfg=cfg, sbm=None, k_out=k_out)
    pairs = {"out": (results[0], out)}
    if rope:
        pairs["k"] = (results[1], k_out)
    return pairs


def _blockwise(mask: torch.Tensor, utils: Any, cfg: Any, lnc: int) -> torch.Tensor:
    """Order a mask [S, B, N, s] as the paged kernel reads it: 128 blocks side by side."""
    block, _ = utils.resize_cache_block_len_for_attention_tkg_kernel(
        cfg.curr_sprior // cfg.block_len, cfg.block_len, lnc, 128, cfg.bs, cfg.q_head,
        cfg.s_active, full_sprior=cfg.full_sprior,
    )  # fmt: skip
    folds = mask.reshape(-1, 128, block, *mask.shape[1:])
    return folds.transpose(1, 2).reshape(mask.shape).contiguous()


def _kernel(module: Any, cfg: Any, names: list[str]) -> Any:
    """Return a kernel that calls `attention_tkg` with a manager, an output and SBUF copies."""

    def kernel(*tensors):
        import nki.isa as nisa
        import nki.language as nl

        given = dict(zip(names, tensors, strict=True))
        if cfg.qk_in_sb:
            for name in ("q", "k_active"):
                source = given[name]
                given[name] = nl.ndarray(source.shape, source.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=given[name], src=source)
        dtype = tensors[0].dtype
        out = nl.ndarray((cfg.bs, cfg.q_head, cfg.d_head, cfg.s_active), dtype, nl.shared_hbm)
        k_out = None
        if cfg.fuse_rope:
            k_out = nl.ndarray((cfg.bs, 1, cfg.d_head, cfg.s_active), dtype, nl.shared_hbm)
        manager = module.SbufManager(
            0, nl.tile_size.total_available_sbuf_size, None, use_auto_alloc=True
        )
        manager.open_scope()
        module.attention_tkg(**given, out=out, cfg=cfg, sbm=manager, k_out=k_out)
        manager.close_scope()
        return (out, k_out) if k_out is not None else (out,)

    return kernel


def gen_mask(library: Library) -> Pairs:
    """Make the mask of a flat cache from positions."""
    batch, heads, active, prior = 3, 2, 2, 512
    first = library.integers(1, prior - active, batch, 1)
    positions = (first + torch.arange(active)).reshape(1, -1).float()
    sizes = (batch, heads, active, prior)
    kernel = library.module("core.attention.gen_mask_tkg").gen_mask_tkg_hbm
    reference = library.module("core.attention.gen_mask_tkg_torch").gen_mask_tkg_hbm_torch_ref
    got = library.simulate(kernel, positions, *sizes)
    want = reference[library.lnc](positions, *sizes)
    return {"mask": (got, want)}
