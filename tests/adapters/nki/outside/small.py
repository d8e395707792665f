# SPDX-License-Identifier: Apache-2.0
"""Kernels with one operation: sums, maxima, norms, routing."""

from __future__ import annotations

import torch

from tests.adapters.nki.outside.library import Library, Pairs


def cumsum(library: Library, *, shape: tuple[int, ...]) -> Pairs:
    """Running sums of the last axis."""
    x = library.normal(*shape, dtype="float32")
    got = library.simulate(library.module("core.cumsum.cumsum").cumsum, x)
    want = library.module("core.cumsum.cumsum_torch").cumsum_torch_ref(x.double())
    return {"out": (got, want["output_0"])}


def cascaded_max(library: Library, *, shape: tuple[int, ...]) -> Pairs:
    """The largest value and its place, for each row."""
    x = library.normal(*shape, dtype="float32")
    kernel = library.module("core.max.cascaded_max").cascaded_max
    values, places = library.simulate(kernel, x)
    want = library.module("core.max.cascaded_max_torch").cascaded_max_torch_ref(x)
    return {
        "values": (values, want["max_values"]),
        "indices": (places.to(torch.int64), want["max_indices"].to(torch.int64)),
    }


def rmsnorm_tkg(
    library: Library, *, dtype: str = "bfloat16", batch: int = 4, hidden: int = 512
) -> Pairs:
    """RMSNorm of [B, 1, H] into the layout [128, B, H/128]."""
    x = library.normal(batch, 1, hidden, dtype=dtype)
    gamma = library.normal(1, hidden, dtype=dtype)
    norm = library.module("core.subkernels.rmsnorm_tkg").rmsnorm_tkg
    references = library.module("core.subkernels.rmsnorm_torch")

    def kernel(x, gamma):
        import nki.language as nl

        out = nl.ndarray((128, batch, hidden // 128), x.dtype, buffer=nl.shared_hbm)
        norm(x, gamma, out)
        return out

    got = library.simulate(kernel, x, gamma)
    # The wide layout belongs to two cores: each one's half of the hidden size is on its own.
    reference = (
        references.rmsnorm_tkg_torch_ref if library.lnc == 2 else
        references.rmsnorm_tkg_torch_ref_lnc1
    )  # fmt: skip
    want = reference(x.float(), gamma.float(), None)
    return {"out": (got, want["out"])}


def router_topk(
    library: Library,
    *,
    tokens: int = 9,
    experts: int = 24,
    k: int = 4,
    sigmoid: bool = False,
    pre_norm: bool = True,
    normalize: bool = False,
    scatter: bool = False,
) -> Pairs:
    """Logits, the k best experts and their weights, for x [H, T]."""
    hidden = 256
    x = library.normal(hidden, tokens)
    w = library.normal(hidden, experts, scale=hidden**-0.5)
    bias = library.normal(1, experts, scale=0.1)
    module = library.module("core.router_topk.router_topk")
    types = library.module("core.utils.common_types").RouterActFnType
    settings = {
        "act_fn": types.SIGMOID if sigmoid else types.SOFTMAX,
        "k": k,
        "x_hbm_layout": 0,
        "x_sb_layout": 0,
        "router_pre_norm": pre_norm,
        "norm_topk_prob": normalize,
        "use_indirect_dma_scatter": scatter,
    }
    outputs = (
        torch.zeros(tokens, experts),
        torch.zeros(tokens, experts),
        torch.zeros(tokens, k, dtype=torch.uint32),
    )
    logits, index, affinities = library.simulate(
        module.router_topk, x, w, bias, *outputs, **settings
    )
    reference = library.module("core.router_topk.router_topk_torch").router_topk_torch_ref
    want = reference(x.float(), w.float(), bias.float(), None, None, None, **settings)
    return {
        "logits": (logits, want["router_logits"]),
        "affinities": (affinities, want["expert_affinities"]),
        "index": (index.to(torch.int64), want["expert_index"]),
    }
