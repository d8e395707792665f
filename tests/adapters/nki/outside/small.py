# SPDX-License-Identifier: Apache-2.0
"""Kernels with one operation: sums, maxima, norms, routing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.adapters.nki.outside.library import Library, Pairs, as_numpy


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
    got = library.simulate(_into_output(norm), x, gamma)
    reference = _two_layouts(library, "rmsnorm_torch", "rmsnorm_tkg_torch_ref")
    want = reference(x.float(), gamma.float(), None)
    return {"out": (got, want["out"])}


def layernorm_tkg(library: Library) -> Pairs:
    """LayerNorm of [B, 1, H] into the layout [128, B, H/128]."""
    x, gamma, beta = (library.normal(rows, 1, 512) for rows in (5, 1, 1))
    gamma, beta = gamma[0], beta[0]
    norm = library.module("core.subkernels.layernorm_tkg").layernorm_tkg
    got = library.simulate(_into_output(norm), x, gamma, beta)
    reference = _two_layouts(library, "layernorm_torch", "layernorm_tkg_torch_ref")
    want = reference(x.float(), gamma.float(), None, beta.float())
    return {"out": (got, want["out"])}


def _into_output(norm: Any) -> Any:
    """Return a kernel that gives a norm its output tensor."""

    def kernel(x, gamma, *beta):
        import nki.language as nl

        out = nl.ndarray((128, x.shape[0], x.shape[2] // 128), x.dtype, buffer=nl.shared_hbm)
        norm(x, gamma, out, *beta)
        return out

    return kernel


def _two_layouts(library: Library, module: str, name: str) -> Any:
    """Return the reference with each core's half of the hidden size on its own, or in one piece."""
    references = library.module(f"core.subkernels.{module}")
    return getattr(references, name if library.lnc == 2 else f"{name}_lnc1")


def rmsnorm_quant(library: Library) -> Pairs:
    """RMSNorm of [2, 65, 512], quantized per row; the reference is plain torch, not quantized."""
    x, gamma = library.normal(2, 65, 512), library.normal(1, 512)
    # numpy arrays, because torch has no type for the fp8 of trn2
    arrays = (as_numpy(t) for t in (x, gamma))
    module = library.module("core.rmsnorm.rmsnorm_quant")
    types = library.module("core.utils.common_types")
    settings = module.RmsNormQuantKernelArgs(
        lower_bound=0.0,
        norm_type=types.NormType.RMS_NORM,
        quantization_type=types.QuantizationType.ROW,
    )
    rows = library.simulate(module.rmsnorm_quant_kernel, *arrays, settings)
    scales = np.ascontiguousarray(rows[..., 512:]).view(np.float32)
    got = torch.from_numpy(rows[..., :512].astype(np.float32) * scales)
    return {
        "out": (got, torch.nn.functional.rms_norm(x.float(), (512,), gamma[0].float(), eps=1e-6))
    }


def find_nonzero(library: Library) -> Pairs:
    """Rows of each column that are not zero, and how many."""
    x = library.normal(256, 32, dtype="float32") * (library.normal(256, 32) > 0.5)
    kernel = library.module("core.subkernels.find_nonzero_indices").find_nonzero_indices
    indices, counts = library.simulate(kernel, x)
    want = library.module(
        "core.subkernels.find_nonzero_indices_torch"
    ).find_nonzero_indices_torch_ref(x)
    return {"indices": (indices, want["indices"]), "counts": (counts, want["nonzero_counts"])}


def indexed_flatten(library: Library) -> Pairs:
    """Rows of blocks at offsets of one long array; the last row is past its end."""
    rows = library.integers(0, 1000, 4, 512)
    offsets = torch.tensor([16, 0, 33, 64], dtype=torch.int32)
    kernel = library.module("core.subkernels.indexed_flatten").indexed_flatten
    reference = library.module("core.subkernels.indexed_flatten_torch").indexed_flatten_torch_ref
    got = library.simulate(kernel, rows, 32, 2048, offsets)
    return {"out": (got, reference(rows, 32, 2048, offsets)["flattened_array"])}


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
