# SPDX-License-Identifier: Apache-2.0
"""Every kernel of ours, with arguments as its torch operator gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.adapters.nki.real.program import APPROXIMATE, BF16, EXACT, Program, integers, normal
from trnport.adapters.nki.kernels import (
    decode,
    fused_qkv,
    kv_write,
    mlp,
    moe,
    norm,
    prefill,
    projection,
    rotary,
    router,
    topk,
)

DTYPES = {"fp32": (torch.float32, APPROXIMATE), "bf16": (torch.bfloat16, BF16)}


def _scaled(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return (normal(*shape, seed=seed) / shape[-2] ** 0.5).to(dtype)


def _angles(tokens: int, half: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angle = normal(tokens, half, seed=9)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _norm(d: torch.dtype) -> tuple[Any, ...]:
    return normal(130, 96, dtype=d), normal(96, seed=1, dtype=d), 1e-5


def _add_norm(d: torch.dtype) -> tuple[Any, ...]:
    x, weight, eps = _norm(d)
    return x, normal(130, 96, seed=2, dtype=d), weight, eps


def _rope(d: torch.dtype) -> tuple[Any, ...]:
    return normal(130, 3, 16, dtype=d), normal(130, 1, 16, seed=1, dtype=d), *_angles(130, 8, d)


def _linear(d: torch.dtype) -> tuple[Any, ...]:
    return normal(130, 140, dtype=d), _scaled(140, 70, seed=1, dtype=d), normal(70, dtype=d), True


def _mlp(d: torch.dtype) -> tuple[Any, ...]:
    opened = [_scaled(96, 140, seed=i, dtype=d) for i in (1, 2)]
    biases = (normal(140, dtype=d), None, normal(96, seed=5, dtype=d))
    return (normal(33, 96, dtype=d), *opened, _scaled(140, 96, seed=3, dtype=d), *biases,
            True, False, True)  # fmt: skip


def _fused(d: torch.dtype) -> tuple[Any, ...]:
    return (
        normal(130, 96, dtype=d), normal(96, seed=1, dtype=d), _scaled(96, 7 * 16, seed=2, dtype=d),
        normal(7 * 16, seed=3, dtype=d), *_angles(130, 8, d), 1e-5, (3, 2), True,
    )  # fmt: skip


def _caches(d: torch.dtype, dim: int) -> tuple[Tensor, Tensor]:
    """Ten blocks of 16 slots with two heads, as matrices of rows."""
    k, v = (normal(10 * 2 * 16, dim, seed=i, dtype=d) for i in (6, 7))
    return k, v


def _kv_write(d: torch.dtype) -> tuple[Any, ...]:
    rows = [normal(20, 2, 8, seed=i, dtype=d) for i in (1, 2)]
    slots = integers([[(7 * i) % 160 if i % 5 else -1] for i in range(20)])
    return (*rows, *_caches(d, 8), slots, 16)


def _own(d: torch.dtype, tokens: int) -> tuple[Any, ...]:
    rows = [normal(tokens * 2, 16, seed=i, dtype=d) for i in (1, 2)]
    valid = (torch.arange(tokens) < tokens - 3).to(torch.uint8)
    return (normal(tokens, 4, 16, dtype=d), *rows, valid)


def _prefill(d: torch.dtype) -> tuple[Any, ...]:
    return (*_own(d, 133), normal(4, 1, seed=8, dtype=d), 2, 0.25, 50, True)


def _prior(d: torch.dtype) -> tuple[Any, ...]:
    blocks = integers([[3, 9, 1, 4, 0]])
    prior = (*_caches(d, 16), blocks, integers([[70]]), None)
    return (*_own(d, 21), *prior, 2, 16, 0.25, 0, False)


def _decode(d: torch.dtype) -> tuple[Any, ...]:
    blocks = integers([[3, 9, 1], [4, 5, 6]])
    return (normal(2, 4, 16, dtype=d), *_caches(d, 16), blocks, integers([[40], [5]]), None,
            2, 16, 0.25, 0, False)  # fmt: skip


def _top_k(d: torch.dtype) -> tuple[Any, ...]:
    return normal(9, 300, dtype=d).round(decimals=1), 11


def _router(d: torch.dtype) -> tuple[Any, ...]:
    return (normal(20, 96, dtype=d), _scaled(96, 12, seed=1, dtype=d), normal(12, seed=2, dtype=d),
            4, True, False)  # fmt: skip


def _moe(d: torch.dtype) -> tuple[Any, ...]:
    shares = normal(9, 3, seed=4).softmax(-1)
    opened = [torch.stack([_scaled(96, 40, seed=i + j, dtype=d) for j in range(3)]) for i in (1, 5)]
    down = torch.stack([_scaled(40, 96, seed=9 + j, dtype=d) for j in range(3)])
    biases = (*(normal(3, 40, seed=i, dtype=d) for i in (2, 3)), normal(3, 96, seed=4, dtype=d))
    return (normal(9, 96, dtype=d), shares, *opened, down, *biases, True, 7.0, 1.702)


_KERNELS: dict[str, tuple[Callable[..., Any], Callable[[torch.dtype], tuple[Any, ...]]]] = {
    "rms_norm": (norm.rms_norm, _norm),
    "add_rms_norm": (norm.add_rms_norm, _add_norm),
    "rope": (rotary.rope, _rope),
    "linear": (projection.linear, _linear),
    "mlp": (mlp.mlp, _mlp),
    "norm_qkv_rope": (fused_qkv.norm_qkv_rope, _fused),
    "prefill_attention": (prefill.prefill_attention, _prefill),
    "prefill_attention_with_prior": (prefill.prefill_attention_with_prior, _prior),
    "decode_attention": (decode.decode_attention, _decode),
    "moe_all_experts": (moe.moe_all_experts, _moe),
}


def _program(name: str, dtype: str) -> Program:
    kernel, arguments = _KERNELS[name]
    kind, tolerance = DTYPES[dtype]
    return Program(kernel, lambda: arguments(kind), tolerance)


PROGRAMS = {
    **{f"{name} in {dtype}": _program(name, dtype) for name in _KERNELS for dtype in DTYPES},
    "kv_write in bf16": Program(kv_write.kv_write, lambda: _kv_write(torch.bfloat16), EXACT),
    "top_k in fp32": Program(topk.top_k, lambda: _top_k(torch.float32), EXACT),
    "router_top_k in fp32": Program(
        router.router_top_k, lambda: _router(torch.float32), APPROXIMATE
    ),
}
