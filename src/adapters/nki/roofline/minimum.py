# SPDX-License-Identifier: Apache-2.0
"""What every implementation of an operator has to move and to multiply."""

from __future__ import annotations

import math

from trnport.core.kernel_calls import KernelCall, Shape


def least_bytes(call: KernelCall) -> int:
    """Bytes between HBM and the core if each operand crosses once.

    That is weights, inputs and results, and of a cache what a full batch reads.
    """
    shapes = call.shapes
    caches = [shapes.pop(name) for name in ("k_cache", "v_cache") if name in shapes]
    total = sum(_bytes(shape) for shape in shapes.values())
    if call.operator == "kv_write":
        return total + _bytes(shapes["k"]) + _bytes(shapes["v"])
    for cache in caches:
        _, heads, block_size, dim = cache.sizes
        total += _seen(call, block_size) * heads * dim * cache.dtype.itemsize
    return total + _result_bytes(call)


def least_macs(call: KernelCall) -> int:
    """Multiply-adds of the operator's matrix products; causal attention counts half."""
    if call.operator in {"qkv_proj", "o_proj", "linear"}:
        depth, columns = call["weight"].sizes
        return call["x"].sizes[0] * depth * columns
    if call.operator == "mlp":
        depth, columns = call["gate_weight"].sizes
        return 3 * call["x"].sizes[0] * depth * columns
    if not call.operator.endswith(("attention", "prior")):
        return 0
    rows, heads, dim = call["q"].sizes
    window = call["sliding_window"] or math.inf
    if call.operator == "decode_attention":
        keys = _seen(call, call["k_cache"].sizes[2])
    else:
        keys = int(sum(min(i + 1, window) for i in range(rows)))
    if call.operator.endswith("prior"):
        owned = _owned(call)
        keys += int(sum(max(0, min(owned, window - i - 1)) for i in range(rows)))
    return 2 * keys * heads * dim


def _owned(call: KernelCall) -> int:
    return call["block_table"].sizes[1] * call["k_cache"].sizes[2]


def _seen(call: KernelCall, block_size: int) -> int:
    """Cached positions that a full batch reads."""
    rows, columns = call["block_table"].sizes
    each = columns * block_size
    window = call["sliding_window"]
    return int(rows * (min(each, window) if window else each))


def _result_bytes(call: KernelCall) -> int:
    first = next(iter(call.shapes.values()))
    if call.operator == "rope":
        return _bytes(call["q"]) + _bytes(call["k"])
    if call.operator in {"qkv_proj", "o_proj", "linear"}:
        return int(first.sizes[0] * call["weight"].sizes[1] * first.dtype.itemsize)
    if call.operator == "top_k":
        return first.sizes[0] * int(call["k"]) * (first.dtype.itemsize + 4)
    return _bytes(first)


def _bytes(shape: Shape) -> int:
    # Row numbers need no more than four bytes, whatever the port passes.
    return math.prod(shape.sizes) * min(shape.dtype.itemsize, 4)
