# SPDX-License-Identifier: Apache-2.0
"""What every operator should return, in fp64 and written plainly: one row, one head at a time.

It shares no code with any set of kernels, and takes the inputs as they were rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Arguments = Mapping[str, Any]


def truth(operator: str, arguments: Arguments) -> tuple[Tensor, ...]:
    """Results in fp64 (indices in int64); rows of padding are left out by :func:`compared`."""
    return _TRUTHS[operator](arguments)


def compared(operator: str, arguments: Arguments, results: Any) -> tuple[Tensor, ...]:
    """The part of an operator's results that the port promises.

    ``kv_write`` returns nothing: its caches are its results. Padding rows may hold anything, and
    so may indices of top-k where values are equal, which is why values are compared there.
    """
    if operator == "kv_write":
        return arguments["k_cache"], arguments["v_cache"]
    found = results if isinstance(results, tuple) else (results,)
    if "valid" in arguments:
        return tuple(x[arguments["valid"]] for x in found)
    return tuple(found)


def _wide(arguments: Arguments) -> dict[str, Any]:
    return {
        name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in arguments.items()
    }


def _rms_norm(a: Arguments) -> tuple[Tensor, ...]:
    x, weight = (_wide(a)[name] for name in ("x", "weight"))
    return (x / (x.square().mean(-1, keepdim=True) + a["eps"]).sqrt() * weight,)


def _rope(a: Arguments) -> tuple[Tensor, ...]:
    wide = _wide(a)
    cos, sin = wide["cos"][:, None], wide["sin"][:, None]
    half = cos.shape[-1]

    def turn(x: Tensor) -> Tensor:
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)

    return turn(wide["q"]), turn(wide["k"])


def _product(a: Arguments) -> tuple[Tensor, ...]:
    wide = _wide(a)
    return (wide["x"].flatten(1) @ wide["weight"],)


def _mlp(a: Arguments) -> tuple[Tensor, ...]:
    wide = _wide(a)
    gate = wide["x"] @ wide["gate_weight"]
    return ((gate / (1 + (-gate).exp()) * (wide["x"] @ wide["up_weight"])) @ wide["down_weight"],)


def _top_k(a: Arguments) -> tuple[Tensor, ...]:
    values, places = _wide(a)["logits"].sort(dim=-1, descending=True, stable=True)
    return values[:, : a["k"]], places[:, : a["k"]]


def _kv_write(a: Arguments) -> tuple[Tensor, ...]:
    caches = []
    for own, cache in (("k", "k_cache"), ("v", "v_cache")):
        result = a[cache].double()
        block_size = result.shape[2]
        for token, slot in enumerate(a["slot_mapping"].tolist()):
            if slot >= 0:
                result[slot // block_size, :, slot % block_size] = a[own][token].double()
        caches.append(result)
    return tuple(caches)


def _attend(a: Arguments, q: Tensor, keys: Tensor, values: Tensor, head: int) -> Tensor:
    """One query ``[D]`` over ``[n, D]`` keys, which are all visible."""
    scores = (keys @ q) * a["scale"]
    sinks = a.get("sinks")
    logits = scores if sinks is None else torch.cat([scores, sinks[head].double().view(1)])
    return logits.softmax(0)[: len(scores)] @ values


def _attention(a: Arguments, row: int, keys: Tensor, values: Tensor) -> Tensor:
    """All heads of one query over ``[n, Hk, D]`` keys; the last one is the query's own position."""
    window = a.get("sliding_window")
    if window:
        keys, values = keys[-window:], values[-window:]
    q = a["q"][row].double()
    group = q.shape[0] // keys.shape[1]
    heads = [
        _attend(a, q[h], keys[:, h // group], values[:, h // group], h) for h in range(q.shape[0])
    ]
    return torch.stack(heads)


def _cached(a: Arguments, name: str, row: int, count: int) -> Tensor:
    """Positions 0 to ``count - 1`` of a row's blocks: ``[count, Hk, D]``."""
    blocks = a[name][a["block_table"][row].long()].double()
    return blocks.transpose(1, 2).flatten(0, 1)[:count]


def _decode(a: Arguments) -> tuple[Tensor, ...]:
    rows = []
    for row, position in enumerate(a["positions"].tolist()):
        keys, values = (_cached(a, name, row, position + 1) for name in ("k_cache", "v_cache"))
        rows.append(_attention(a, row, keys, values))
    return (torch.stack(rows),)


def _prefill(a: Arguments) -> tuple[Tensor, ...]:
    wide = _wide(a)
    count = int(a["cached_seq_len"]) if "cached_seq_len" in a else 0
    keys, values = wide["k"], wide["v"]
    if count:
        keys = torch.cat([_cached(a, "k_cache", 0, count), keys])
        values = torch.cat([_cached(a, "v_cache", 0, count), values])
    rows = []
    for row in range(int(a["valid"].sum())):  # padding stands at the end
        seen = count + row + 1
        rows.append(_attention(a, row, keys[:seen], values[:seen]))
    return (torch.stack(rows),)


_TRUTHS: dict[str, Callable[[Arguments], tuple[Tensor, ...]]] = {
    "decode_attention": _decode,
    "kv_write": _kv_write,
    "linear": _product,
    "mlp": _mlp,
    "o_proj": _product,
    "prefill_attention": _prefill,
    "prefill_attention_with_prior": _prefill,
    "qkv_proj": _product,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "top_k": _top_k,
}
