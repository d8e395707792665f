# SPDX-License-Identifier: Apache-2.0
"""Our kernels as operators of torch, traceable as one graph.

Each operator states its shapes for tracing and which arguments it changes; nothing else is
hidden. The machine is an argument, so that a graph says what its kernels were made for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trnport.adapters.nki.execute import run
from trnport.adapters.nki.kernels import decode, kv_write, mlp, norm, prefill, projection, rotary
from trnport.adapters.nki.kernels import topk as topk_kernel

NAMESPACE = "trnport_nki"


def _operator(
    name: str, schema: str, fake: Callable[..., Any], mutates: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Any]:
    """Register an operator with its shapes.

    Args:
        name: Its name in the namespace.
        schema: Arguments and results.
        fake: The results' shapes, for tracing.
        mutates: Arguments that it changes.
    """

    def register(body: Callable[..., Any]) -> Any:
        op = torch.library.custom_op(
            f"{NAMESPACE}::{name}", body, mutates_args=mutates, schema=schema
        )
        op.register_fake(fake)
        return op

    return register


def _like_first(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


def _like_both(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k)


def _best(logits: Tensor, k: int, *_: Any) -> tuple[Tensor, Tensor]:
    shape = (logits.shape[0], k)
    return logits.new_empty(shape), logits.new_empty(shape, dtype=torch.int64)


def _matrix(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


def _as(x: Tensor, result: Tensor) -> Tensor:
    """The result in the dtype of ``x``: precise simulation gives fp32."""
    return result.to(x.dtype)


def _flat(cache: Tensor) -> Tensor:
    """The matrix of rows of a cache ``[N, Hk, S, D]``, without a copy."""
    return cache.view(-1, cache.shape[-1])


def _column(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous().view(-1, 1)


@_operator("rms_norm", "(Tensor x, Tensor weight, float eps, str machine) -> Tensor", _like_first)
def rms_norm(x: Tensor, weight: Tensor, eps: float, machine: str) -> Tensor:
    """``[T, H]`` and ``[H]`` to ``[T, H]``."""
    return _as(x, run(norm.rms_norm, machine, x, weight, eps))


@_operator(
    "rope",
    "(Tensor q, Tensor k, Tensor cos, Tensor sin, str machine) -> (Tensor, Tensor)",
    _like_both,
)
def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, machine: str) -> tuple[Tensor, Tensor]:
    """``[T, heads, D]`` twice and ``[T, R/2]`` twice, to rotated queries and keys."""
    q_out, k_out = run(rotary.rope, machine, q, k, cos, sin)
    return _as(q, q_out), _as(k, k_out)


@_operator("linear", "(Tensor x, Tensor weight, Tensor? bias, str machine) -> Tensor", _matrix)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None, machine: str) -> Tensor:
    """``[T, K]``, ``[K, N]`` and ``[N]`` or None to ``[T, N]``."""
    return _as(x, run(projection.linear, machine, x, weight, bias, bias is not None))


@_operator(
    "mlp",
    "(Tensor x, Tensor gate, Tensor up, Tensor down, Tensor? gate_bias, Tensor? up_bias, "
    "Tensor? down_bias, str machine) -> Tensor",
    _like_first,
)
def gated_mlp(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    machine: str,
) -> Tensor:
    """``[T, H]`` to ``[T, H]`` through I intermediate values."""
    biases = (gate_bias, up_bias, down_bias)
    present = [bias is not None for bias in biases]
    return _as(x, run(mlp.mlp, machine, x, gate, up, down, *biases, *present))


@_operator(
    "kv_write",
    "(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots, str machine) -> ()",
    lambda *_: None,
    mutates=("k_cache", "v_cache"),
)
def write_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, machine: str
) -> None:
    """``[T, Hk, D]`` twice into ``[N, Hk, S, D]`` twice, by ``[T]`` integer slots."""
    numbers = slots.to(torch.int32).view(-1, 1)
    block_size = k_cache.shape[2]
    run(kv_write.kv_write, machine, k, v, _flat(k_cache), _flat(v_cache), numbers, block_size)


@_operator(
    "prefill_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor valid, float scale, int window, Tensor? sinks, "
    "str machine) -> Tensor",
    _like_first,
)
def prefill_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor,
    scale: float,
    window: int,
    sinks: Tensor | None,
    machine: str,
) -> Tensor:
    """``[T, Hq, D]``, ``[T, Hk, D]`` twice and ``[T]`` bool to ``[T, Hq, D]``; window 0: none."""
    flags = valid.view(torch.uint8)
    shapes = (_column(sinks), k.shape[1], scale, window, sinks is not None)
    kernel = prefill.prefill_attention
    return _as(q, run(kernel, machine, q, _flat(k), _flat(v), flags, *shapes))


@_operator(
    "prefill_attention_with_prior",
    "(Tensor q, Tensor k, Tensor v, Tensor valid, Tensor k_cache, Tensor v_cache, "
    "Tensor block_table, Tensor cached_len, float scale, int window, Tensor? sinks, "
    "str machine) -> Tensor",
    _like_first,
)
def prefill_attention_with_prior(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cached_len: Tensor,
    scale: float,
    window: int,
    sinks: Tensor | None,
    machine: str,
) -> Tensor:
    """As :func:`prefill_attention`, after the prefix of ``[1, M]`` blocks."""
    own = (q, _flat(k), _flat(v), valid.view(torch.uint8))
    prior = (_flat(k_cache), _flat(v_cache), block_table.int(), cached_len.int())
    shapes = (k.shape[1], k_cache.shape[2], scale, window, sinks is not None)
    kernel = prefill.prefill_attention_with_prior
    return _as(q, run(kernel, machine, *own, *prior, _column(sinks), *shapes))


@_operator(
    "decode_attention",
    "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor positions, "
    "float scale, int window, Tensor? sinks, str machine) -> Tensor",
    _like_first,
)
def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    positions: Tensor,
    scale: float,
    window: int,
    sinks: Tensor | None,
    machine: str,
) -> Tensor:
    """``[B, Hq, D]`` over ``[N, Hk, S, D]`` twice, by ``[B, M]`` blocks and ``[B]`` positions."""
    tensors = (q, _flat(k_cache), _flat(v_cache), block_table.int(), _column(positions.int()))
    shapes = (k_cache.shape[1], k_cache.shape[2], scale, window, sinks is not None)
    return _as(q, run(decode.decode_attention, machine, *tensors, _column(sinks), *shapes))


@_operator(
    "top_k",
    "(Tensor logits, int k, str machine) -> (Tensor, Tensor)",
    _best,
)
def top_k(logits: Tensor, k: int, machine: str) -> tuple[Tensor, Tensor]:
    """``[T, V]`` to values ``[T, k]`` and columns ``[T, k]`` int64."""
    values, columns = run(topk_kernel.top_k, machine, logits, k)
    return _as(logits, values), columns.long()
