# SPDX-License-Identifier: Apache-2.0
"""The gated MLP; the library has no reference for it, so this one is plain torch."""

from __future__ import annotations

import torch

from tests.adapters.nki.outside.library import Library, Pairs, as_numpy, as_torch

_ACTIVATIONS = {
    "SiLU": torch.nn.functional.silu,
    "GELU_Tanh_Approx": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def mlp(
    library: Library,
    *,
    batch: int,
    seq: int,
    norm: str = "NO_NORM",
    add: bool = False,
    act: str = "SiLU",
    column_tiling: bool = True,
) -> Pairs:
    """Run [B, S, H] through gate, up and down; the kernel picks its variant by B*S."""
    hidden, inner = 512, 384
    types = library.module("core.utils.common_types")
    x = library.normal(batch, seq, hidden)
    gate, up = (library.normal(hidden, inner, scale=hidden**-0.5) for _ in range(2))
    down = library.normal(inner, hidden, scale=inner**-0.5)
    gamma = library.normal(1, hidden) if norm != "NO_NORM" else None
    residual = library.normal(batch, seq, hidden) if add else None
    (got, *_) = library.simulate(
        library.module("core.mlp.mlp").mlp,
        x,
        gate,
        up,
        down,
        normalization_weights_tensor=gamma,
        fused_add_tensor=residual,
        normalization_type=types.NormType[norm],
        activation_fn=types.ActFnType[act],
        use_tkg_gate_up_proj_column_tiling=column_tiling,
        use_tkg_down_proj_column_tiling=column_tiling,
    )
    h = x.float()
    if residual is not None:
        h = h + residual.float()
    if gamma is not None:
        h = torch.nn.functional.rms_norm(h, (hidden,), gamma.float()[0], eps=1e-6)
    want = (_ACTIVATIONS[act](h @ gate.float()) * (h @ up.float())) @ down.float()
    return {"out": (got, want)}


def mlp_fp8(library: Library, *, batch: int, seq: int) -> Pairs:
    """The same with fp8 weights that have a scale per column."""
    hidden, inner = 512, 384
    types = library.module("core.utils.common_types")
    x = library.normal(batch, seq, hidden)
    shapes = {"gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden)}
    weights = {name: library.normal_fp8(*shape) for name, shape in shapes.items()}
    scales = {
        name: library.normal(1, shape[1], dtype="float32").abs().repeat(128, 1) / 16
        for name, shape in shapes.items()
    }
    (got, *_) = library.simulate(
        library.module("core.mlp.mlp").mlp,
        as_numpy(x),
        *(narrow for narrow, _ in weights.values()),
        quantization_type=types.QuantizationType.ROW,
        **{f"{name}_w_scale": scale.numpy() for name, scale in scales.items()},
    )
    gate, up, down = (weights[name][1] * scales[name][:1] for name in shapes)
    want = (torch.nn.functional.silu(x.float() @ gate) * (x.float() @ up)) @ down
    return {"out": (as_torch(got), want)}
