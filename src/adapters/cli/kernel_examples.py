# SPDX-License-Identifier: Apache-2.0
"""Example calls of every operator of the Kernels port, made from sizes by name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from trnport.core.errors import ConfigError
from trnport.core.kernels import operator_names

Sizes = Mapping[str, int]

_HEADS = {"heads": 6, "kv_heads": 2, "head_dim": 16}
_CACHE = {"context": 37, "block_size": 8}

DEFAULTS: MappingProxyType[str, Sizes] = MappingProxyType(
    {
        "decode_attention": {"batch": 3, **_CACHE, **_HEADS, "sliding_window": 0, "sinks": 0},
        "kv_write": {"tokens": 11, "kv_heads": 2, "head_dim": 16, "blocks": 5, "block_size": 8},
        "linear": {"tokens": 5, "hidden": 96, "vocab": 131},
        "mlp": {"tokens": 5, "hidden": 96, "intermediate": 77},
        "o_proj": {"tokens": 5, "heads": 6, "head_dim": 16, "hidden": 96},
        "prefill_attention": {"tokens": 37, **_HEADS, "sliding_window": 0, "sinks": 0},
        "prefill_attention_with_prior": {
            "tokens": 13,
            **_CACHE,
            **_HEADS,
            "sliding_window": 0,
            "sinks": 0,
        },
        "qkv_proj": {"tokens": 5, "hidden": 96, **_HEADS},
        "rms_norm": {"tokens": 5, "hidden": 96},
        "rope": {"tokens": 5, **_HEADS},
        "top_k": {"tokens": 5, "vocab": 131, "k": 7},
    }
)
"""Sizes by operator; odd ones, so that tiles do not come out even."""

_MAY_BE_ZERO = {"sliding_window", "sinks"}


def parse_sizes(operator: str, text: str) -> dict[str, int]:
    """The default sizes of an operator, with those that a command line changes.

    Args:
        operator: Name of an operator.
        text: Such as "batch=3,context=37"; empty for the defaults.

    Raises:
        ConfigError: No such operator or size, or a value that cannot be.
    """
    if operator not in DEFAULTS:
        near = difflib.get_close_matches(operator, operator_names(), n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"no operator is called {operator!r}; the nearest is {near!r} of "
            f"{', '.join(operator_names())}"
        )
    sizes = dict(DEFAULTS[operator])
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in sizes:
            raise ConfigError(
                f"--shape {part!r}: {operator} has no size {name!r}, only {', '.join(sizes)}"
            )
        least = 0 if name in _MAY_BE_ZERO else 1
        if not value.isdecimal() or int(value) < least:
            raise ConfigError(f"--shape {part!r}: {name} must be an integer of at least {least}")
        sizes[name] = int(value)
    _check(operator, sizes)
    return sizes


def _check(operator: str, sizes: Sizes) -> None:
    if "kv_heads" in sizes and sizes.get("heads", 0) % sizes["kv_heads"]:
        raise ConfigError(
            f"--shape: heads={sizes['heads']} must be a multiple of kv_heads={sizes['kv_heads']}"
        )
    if operator == "rope" and sizes["head_dim"] % 2:
        raise ConfigError(f"--shape: head_dim={sizes['head_dim']} must be even for rope")
    if operator == "top_k" and sizes["k"] > sizes["vocab"]:
        raise ConfigError(f"--shape: k={sizes['k']} must be at most vocab={sizes['vocab']}")
    if operator == "kv_write" and sizes["tokens"] > (sizes["blocks"] - 1) * sizes["block_size"]:
        raise ConfigError(
            f"--shape: tokens={sizes['tokens']} do not fit into blocks={sizes['blocks']} of "
            f"{sizes['block_size']}, the first of which is the null block"
        )


class _Maker:
    """Random tensors of one dtype."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self._dtype = dtype
        self._random = torch.Generator().manual_seed(seed)

    def normal(self, *sizes: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(sizes, generator=self._random) * scale).to(self._dtype)

    def weight(self, inputs: int, outputs: int) -> Tensor:
        return self.normal(inputs, outputs, scale=inputs**-0.5)

    def order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self._random)

    def below(self, most: int, count: int) -> Tensor:
        return torch.randint(most, (count,), generator=self._random)


def example(operator: str, sizes: Sizes, dtype: torch.dtype, seed: int) -> dict[str, Any]:
    """Arguments by name; the same seed gives the same.

    Args:
        operator: Name of an operator.
        sizes: From :func:`parse_sizes`.
        dtype: Dtype of everything that is not an integer.
        seed: Of the random numbers.
    """
    return _MAKERS[operator](_Maker(dtype, seed), sizes)


def _rms_norm(make: _Maker, n: Sizes) -> dict[str, Any]:
    x, weight = make.normal(n["tokens"], n["hidden"]), make.normal(n["hidden"])
    return {"x": x, "weight": weight, "eps": 1e-5}


def _rope(make: _Maker, n: Sizes) -> dict[str, Any]:
    half = n["head_dim"] // 2
    angles = torch.arange(n["tokens"])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    return {**_queries(make, n), "cos": angles.cos(), "sin": angles.sin()}


def _queries(make: _Maker, n: Sizes) -> dict[str, Any]:
    q = make.normal(n["tokens"], n["heads"], n["head_dim"])
    return {"q": q, "k": make.normal(n["tokens"], n["kv_heads"], n["head_dim"])}


def _qkv_proj(make: _Maker, n: Sizes) -> dict[str, Any]:
    columns = (n["heads"] + 2 * n["kv_heads"]) * n["head_dim"]
    return {
        "x": make.normal(n["tokens"], n["hidden"]),
        "weight": make.weight(n["hidden"], columns),
    }


def _o_proj(make: _Maker, n: Sizes) -> dict[str, Any]:
    x = make.normal(n["tokens"], n["heads"], n["head_dim"])
    return {"x": x, "weight": make.weight(n["heads"] * n["head_dim"], n["hidden"])}


def _linear(make: _Maker, n: Sizes) -> dict[str, Any]:
    x = make.normal(n["tokens"], n["hidden"])
    return {"x": x, "weight": make.weight(n["hidden"], n["vocab"])}


def _mlp(make: _Maker, n: Sizes) -> dict[str, Any]:
    hidden, inner = n["hidden"], n["intermediate"]
    return {
        "x": make.normal(n["tokens"], hidden),
        "gate_weight": make.weight(hidden, inner),
        "up_weight": make.weight(hidden, inner),
        "down_weight": make.weight(inner, hidden),
    }


def _top_k(make: _Maker, n: Sizes) -> dict[str, Any]:
    return {"logits": make.normal(n["tokens"], n["vocab"]), "k": n["k"]}


def _caches(make: _Maker, n: Sizes, blocks: int) -> dict[str, Any]:
    shape = (blocks, n["kv_heads"], n["block_size"], n["head_dim"])
    return {"k_cache": make.normal(*shape), "v_cache": make.normal(*shape)}


def _kv_write(make: _Maker, n: Sizes) -> dict[str, Any]:
    size, tokens = n["block_size"], n["tokens"]
    slots = make.order((n["blocks"] - 1) * size)[:tokens] + size
    slots[::5] = -1  # padding, which is not written
    shape = (tokens, n["kv_heads"], n["head_dim"])
    own = {"k": make.normal(*shape), "v": make.normal(*shape)}
    return {**own, **_caches(make, n, n["blocks"]), "slot_mapping": slots}


def _chunk(make: _Maker, n: Sizes) -> dict[str, Any]:
    tokens = n["tokens"]
    valid = torch.arange(tokens) < max(1, tokens - 2)  # two rows of padding
    v = make.normal(tokens, n["kv_heads"], n["head_dim"])
    return {**_queries(make, n), "v": v, "valid": valid}


def _options(make: _Maker, n: Sizes) -> dict[str, Any]:
    sinks = make.normal(n["heads"]) if n["sinks"] else None
    window = n["sliding_window"] or None
    return {"scale": n["head_dim"] ** -0.5, "sliding_window": window, "sinks": sinks}


def _prefill(make: _Maker, n: Sizes) -> dict[str, Any]:
    return {**_chunk(make, n), **_options(make, n)}


def _prior(make: _Maker, n: Sizes) -> dict[str, Any]:
    columns = math.ceil(n["context"] / n["block_size"])
    return {
        **_chunk(make, n),
        **_caches(make, n, columns + 1),
        "block_table": (make.order(columns) + 1).view(1, -1).int(),
        "cached_seq_len": torch.tensor([[n["context"]]], dtype=torch.int32),
        **_options(make, n),
    }


def _decode(make: _Maker, n: Sizes) -> dict[str, Any]:
    rows, columns = n["batch"], math.ceil(n["context"] / n["block_size"])
    positions = make.below(n["context"], rows)
    positions[0] = n["context"] - 1
    return {
        "q": make.normal(rows, n["heads"], n["head_dim"]),
        **_caches(make, n, rows * columns + 1),
        "block_table": (make.order(rows * columns) + 1).view(rows, columns).int(),
        "positions": positions.int(),
        **_options(make, n),
    }


_MAKERS: dict[str, Callable[[_Maker, Sizes], dict[str, Any]]] = {
    "decode_attention": _decode,
    "kv_write": _kv_write,
    "linear": _linear,
    "mlp": _mlp,
    "o_proj": _o_proj,
    "prefill_attention": _prefill,
    "prefill_attention_with_prior": _prior,
    "qkv_proj": _qkv_proj,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "top_k": _top_k,
}
