# SPDX-License-Identifier: Apache-2.0
"""Which public kernels run on the simulator, how, and how far they may be from their references.

This module imports nothing of NKI, so that tests can be listed in a process without the alias.
"""

from __future__ import annotations

from typing import Any

import attrs

ENVIRONMENT = "TRNPORT_TEST_NKI_LIBRARY"


@attrs.frozen
class Case:
    """One kernel with one set of shapes and options.

    Attributes:
        kernel: Name of the public kernel.
        variant: What is special about the shapes or options.
        build: "module:function" in this folder that makes inputs, runs kernel and reference.
        tolerance: Largest allowed max|got - want| / max|want| over the outputs.
        options: Keyword arguments of the function.
        waived: Rules that the kernel breaks, so that it runs with `strict=False`; none: strict.
        waived_at: The same, for one number of cores only.
        float32: Tolerance with every float held as float32, which leaves errors of logic only;
            None: not run so.
        lnc: Cores that the kernel takes.
    """

    kernel: str
    variant: str
    build: str
    tolerance: float
    options: dict[str, Any] = attrs.field(factory=dict)
    waived: tuple[str, ...] = ()
    waived_at: dict[int, tuple[str, ...]] = attrs.field(factory=dict)
    float32: float | None = 2e-6
    lnc: tuple[int, ...] = (1, 2)


@attrs.frozen
class Run:
    """A case on one machine.

    Attributes:
        case: The case.
        lnc: Cores.
        target: Simulated target.
        precise: Floats are held as float32, as with NKI_PRECISE_FP=0.
    """

    case: Case
    lnc: int
    target: str
    precise: bool = False

    @property
    def name(self) -> str:
        """Name of the run, unique in the table."""
        precise = "-float32" if self.precise else ""
        return f"{self.case.kernel}-{self.case.variant}-lnc{self.lnc}-{self.target}{precise}"

    @property
    def waived(self) -> tuple[str, ...]:
        """Rules that this run breaks."""
        return tuple(sorted({*self.case.waived, *self.case.waived_at.get(self.lnc, ())}))

    @property
    def tolerance(self) -> float:
        """Largest allowed error."""
        return self.case.tolerance if not self.precise else (self.case.float32 or 0.0)


# What a kernel breaks, and why it is not an error of the simulator: docs/nki-library.md.
MODE = {"waived": ("NKI-ENUM",)}
ALONE = {"waived_at": {1: ("NKI-BARRIER-ALONE",)}}
GARBAGE = ("NKI-UNWRITTEN",)
PADDED = {"waived_at": {2: GARBAGE}}
THROWN = {"waived": ("NKI-WRITE-BROADCAST",)}

# bf16 output arguments round what float32 computed, so these cases say nothing with float32.
ROUNDED = {"float32": None}

CASES = (
    Case("rope_hf", "bf16", "embedding:rope_hf", 8e-3, **ROUNDED),
    Case("rope_hf", "fp32", "embedding:rope_hf", 1e-6, {"dtype": "float32"}),
    Case("rope_hf", "backward", "embedding:rope_hf", 8e-3, {"backward": True}, **ROUNDED),
    Case("rope_hf", "cache", "embedding:rope_hf", 8e-3, {"packed": True, "seq": 512}, **ROUNDED),
    Case("rope", "contiguous", "embedding:rope", 8e-3),
    Case("rope", "fp32", "embedding:rope", 1e-6, {"dtype": "float32"}),
    Case("rope", "interleaved", "embedding:rope", 8e-3, {"contiguous": False}),
    Case("rope", "relayout", "embedding:rope", 8e-3, {"contiguous": False, "relayout": True}),
    Case("cumsum", "2d-odd", "small:cumsum", 2e-6, {"shape": (131, 517)}),
    Case("cumsum", "3d", "small:cumsum", 2e-6, {"shape": (3, 5, 2050)}),
    Case("cascaded_max", "one-row", "small:cascaded_max", 0.0, {"shape": (1, 1, 3168)}),
    Case("cascaded_max", "rows", "small:cascaded_max", 0.0, {"shape": (4, 1, 3168)}),
    Case("rmsnorm_tkg", "bf16", "small:rmsnorm_tkg", 5e-3, **MODE),
    Case(
        "rmsnorm_tkg", "fp32-odd", "small:rmsnorm_tkg", 1e-6,
        {"dtype": "float32", "batch": 5}, **MODE,
    ),
    Case(
        "rmsnorm_tkg", "sharded", "small:rmsnorm_tkg", 5e-3,
        {"batch": 20, "hidden": 1024}, **MODE,
    ),
    Case("layernorm_tkg", "bf16", "small:layernorm_tkg", 5e-3, **MODE),
    Case("rmsnorm_quant", "rows", "small:rmsnorm_quant", 4e-2, float32=None),
    Case(
        "find_nonzero_indices", "columns", "small:find_nonzero", 0.0,
        waived=GARBAGE, lnc=(2,), float32=None,
    ),
    Case("indexed_flatten", "blocks", "small:indexed_flatten", 0.0, lnc=(2,), float32=None),
    Case("router_topk", "softmax-first", "small:router_topk", 2e-6, **ALONE),
    Case("router_topk", "softmax-after", "small:router_topk", 2e-6, {"pre_norm": False}, **ALONE),
    Case("router_topk", "normalized", "small:router_topk", 2e-6, {"normalize": True}, **ALONE),
    Case(
        "router_topk", "sigmoid-scatter", "small:router_topk", 2e-6,
        {"sigmoid": True, "pre_norm": False, "scatter": True, "tokens": 16},
    ),
    Case("output_projection_tkg", "bf16", "projection:output_tkg", 5e-3),
    Case("output_projection_tkg", "bias", "projection:output_tkg", 5e-3, {"bias": True, "d": 64}),
    Case("output_projection_tkg", "transposed", "projection:output_tkg", 5e-3, {"transpose": True}),
    Case("output_projection_tkg", "fp8-rows", "projection:output_tkg_fp8", 8e-3),
    Case("output_projection_cte", "bf16", "projection:output_cte", 5e-3),
    Case("output_projection_cte", "odd", "projection:output_cte", 5e-3, {"s": 517, "bias": True}),
    Case("qkv_cte", "plain", "projection:qkv", 5e-3, {"seq": 256}),
    Case("qkv_cte", "rmsnorm", "projection:qkv", 8e-3, {"seq": 256, "norm": "RMS_NORM"}, **THROWN),
    Case(
        "qkv_cte", "rmsnorm-add-bias-odd", "projection:qkv", 8e-3,
        {"seq": 261, "norm": "RMS_NORM", "add": True, "bias": True}, **THROWN,
    ),
    Case("qkv_cte", "layernorm", "projection:qkv", 8e-3, {"seq": 256, "norm": "LAYER_NORM"}),
    Case("qkv_cte", "heads", "projection:qkv", 5e-3, {"seq": 256, "layout": "NBSd", "d": 128}),
    Case("qkv_cte", "rope", "projection:qkv_rope", 8e-3),
    Case("qkv_tkg", "plain", "projection:qkv", 8e-3, {"seq": 1, "batch": 4}),
    Case(
        "qkv_tkg", "rmsnorm", "projection:qkv", 8e-3,
        {"seq": 1, "batch": 4, "norm": "RMS_NORM"}, **MODE,
    ),
    Case(
        "qkv_tkg", "rmsnorm-add-odd", "projection:qkv", 8e-3,
        {"seq": 3, "batch": 5, "norm": "RMS_NORM", "add": True}, **MODE,
    ),
    Case(
        "qkv_tkg", "layernorm-heads", "projection:qkv", 8e-3,
        {"seq": 1, "batch": 4, "norm": "LAYER_NORM", "layout": "NBSd", "d": 128}, **MODE,
    ),
    Case("qkv_tkg", "fp8-rows", "projection:qkv_tkg_fp8", 1e-2, **MODE),
    Case("mlp_tkg", "plain", "mlp:mlp", 5e-3, {"batch": 4, "seq": 1}, **MODE),
    Case("mlp_tkg", "rmsnorm", "mlp:mlp", 8e-3, {"batch": 5, "seq": 1, "norm": "RMS_NORM"}, **MODE),
    Case(
        "mlp_tkg", "rows", "mlp:mlp", 5e-3,
        {"batch": 4, "seq": 2, "column_tiling": False}, **MODE,
    ),
    Case(
        "mlp_tkg", "gelu", "mlp:mlp", 5e-3,
        {"batch": 4, "seq": 1, "act": "GELU_Tanh_Approx"}, **MODE,
    ),
    Case("mlp_tkg", "fp8-rows", "mlp:mlp_fp8", 1e-2, {"batch": 4, "seq": 1}, **MODE),
    Case("mlp_cte", "plain", "mlp:mlp", 5e-3, {"batch": 1, "seq": 256}),
    Case("mlp_cte", "rmsnorm", "mlp:mlp", 8e-3, {"batch": 1, "seq": 256, "norm": "RMS_NORM"}),
    Case("mlp_cte", "add", "mlp:mlp", 8e-3, {"batch": 2, "seq": 128, "add": True}),
    Case("attention_cte", "causal", "attention:cte", 5e-3),
    Case("attention_cte", "full-odd", "attention:cte", 5e-3, {"causal": False, "seq": 391}),
    Case("attention_cte", "gqa-sink", "attention:cte", 5e-3, {"kv": 1, "sink": True, "batch": 4}),
    Case("attention_cte", "window", "attention:cte", 5e-3, {"window": 100, "seq": 512}),
    Case("attention_cte", "prefix", "attention:cte", 5e-3, {"prior": 256, "used": 131}),
    Case("attention_cte", "transposed", "attention:cte", 5e-3, {"transposed": True, "d": 64}),
    Case("attention_cte", "packed", "attention:cte", 5e-3, {"packed": (100, 256)}),
    Case("attention_tkg", "flat", "attention:tkg", 5e-3, **PADDED),
    Case(
        "attention_tkg", "rope", "attention:tkg", 8e-3, {"rope": True}, waived=GARBAGE, float32=2e-5
    ),
    Case(
        "attention_tkg", "speculative", "attention:tkg", 5e-3,
        {"active": 5, "batch": 2}, **PADDED,
    ),
    Case(
        "attention_tkg", "transpose-sink", "attention:tkg", 5e-3,
        {"tp": True, "sink": True}, **PADDED,
    ),
    Case(
        "attention_tkg", "paged", "attention:tkg", 5e-3,
        {"block": 16, "tp": True, "strided": False, "prior": 2048, "batch": 2}, **PADDED,
    ),
    Case("attention_tkg", "positions", "attention:tkg", 5e-3, {"positions": True}, **PADDED),
    Case("gen_mask_tkg", "positions", "attention:gen_mask", 0.0),
    Case("moe_tkg", "all-expert", "moe:tkg", 8e-3, **MODE),
    Case("moe_tkg", "all-expert-scaled", "moe:tkg", 8e-3, {"scaled": True}, **MODE),
    Case(
        "moe_tkg", "all-expert-gpt-oss", "moe:tkg", 1e-2, {"scaled": True, "gpt_oss": True},
        waived=("NKI-DMA-TRANSPOSE-MODE", "NKI-ENUM"),
    ),
    Case(
        "moe_tkg", "selective", "moe:tkg", 8e-3, {"all_expert": False, "scaled": True},
        waived=("NKI-ENUM", "NKI-OPERAND-DTYPE", "NKI-UNWRITTEN"),
    ),
    Case(
        "moe_cte", "shard-on-block", "moe:cte", 8e-3, lnc=(2,),
        waived=("NKI-OPERAND-DTYPE", "NKI-PSUM-CAPACITY"),
    ),
)  # fmt: skip

RUNS = (
    *(Run(case, lnc, target) for case in CASES for target in ("trn2", "trn3") for lnc in case.lnc),
    *(Run(case, lnc, "trn2", True) for case in CASES if case.float32 for lnc in case.lnc),
)
