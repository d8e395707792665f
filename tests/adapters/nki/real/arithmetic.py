# SPDX-License-Identifier: Apache-2.0
"""Elementwise operations, activations, reductions, scans and statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.adapters.nki.real.program import (
    APPROXIMATE,
    ROUNDING,
    Program,
    fresh,
    integers,
    load,
    normal,
    store,
)
from trnport.adapters.nki.nki import nisa, nl

ARITHMETIC = (
    "add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "greater",
    "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_xor",
)  # fmt: skip
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")
FUNCTIONS = (
    "copy", "square", "sigmoid", "relu", "gelu", "gelu_apprx_tanh", "silu", "tanh", "softplus",
    "mish", "erf", "exp", "sign", "abs", "sin", "arctan",
)  # fmt: skip
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal")


def binary(op: str) -> Callable[..., Any]:
    """Kernel with one operation of two tiles."""

    def kernel(a: Any, b: Any) -> Any:
        out = fresh(a.shape, a.dtype)
        nisa.tensor_tensor(dst=out, data1=load(a), data2=load(b), op=getattr(nl, op))
        return store(out)

    return kernel


def with_scalar(op: str, reverse: bool) -> Callable[..., Any]:
    """Kernel with an operation by a constant, then a multiplication by a column."""

    def kernel(x: Any, column: Any) -> Any:
        out = fresh(x.shape)
        nisa.tensor_scalar(
            dst=out,
            data=load(x),
            op0=getattr(nl, op),
            operand0=0.25,
            reverse0=reverse,
            op1=nl.multiply,
            operand1=load(column),
        )
        return store(out)

    return kernel


def shifted_bits(x: Any) -> Any:
    """Bits of integers, by constants."""
    out = fresh(x.shape, x.dtype)
    nisa.tensor_scalar(
        dst=out, data=load(x), op0=nl.left_shift, operand0=3, op1=nl.bitwise_and, operand1=0x7F8
    )
    return store(out)


def three_tiles(x: Any, y: Any, column: Any) -> Any:
    """(data op0 column) op1 tile, the second reversed."""
    out = fresh(x.shape)
    nisa.scalar_tensor_tensor(
        dst=out,
        data=load(x),
        op0=nl.multiply,
        operand0=load(column),
        op1=nl.subtract,
        operand1=load(y),
        reverse1=True,
    )
    return store(out)


def inverse(x: Any) -> Any:
    """1 / x on the vector engine."""
    out = fresh(x.shape)
    nisa.reciprocal(dst=out, data=load(x))
    return store(out)


def function(name: str) -> Callable[..., Any]:
    """Kernel with one activation of x * scale + bias."""

    def kernel(x: Any, bias: Any) -> Any:
        out = fresh(x.shape)
        nisa.activation(dst=out, op=getattr(nl, name), data=load(x), bias=load(bias), scale=0.5)
        return store(out)

    return kernel


def activation_sums(x: Any) -> Any:
    """Activations and their sums; the sums go where the results begin."""
    both = fresh((x.shape[0], x.shape[1] + 1))
    nisa.activation_reduce(
        dst=both[:, 0 : x.shape[1]],
        op=nl.exp,
        data=load(x),
        reduce_op=nl.add,
        reduce_res=both[:, x.shape[1] : x.shape[1] + 1],
    )
    return store(both)


def reduced(op: str, negate: bool) -> Callable[..., Any]:
    """Kernel that reduces the last axis of three."""

    def kernel(x: Any) -> Any:
        out = fresh(x.shape[:2], x.dtype)
        nisa.tensor_reduce(dst=out, op=getattr(nl, op), data=load(x), axis=2, negate=negate)
        return store(out)

    return kernel


def scalar_sums(x: Any) -> Any:
    """x * 2 and its maximum per partition."""
    out, most = fresh(x.shape), fresh((x.shape[0], 1))
    nisa.tensor_scalar_reduce(
        dst=out, data=load(x), op0=nl.multiply, operand0=2.0, reduce_op=nl.maximum, reduce_res=most
    )
    return store(out), store(most)


def scan(x: Any, y: Any) -> Any:
    """r[i] = x[i] * r[i-1] + y[i]."""
    out = fresh(x.shape)
    nisa.tensor_tensor_scan(
        dst=out, data0=load(x), data1=load(y), initial=0.5, op0=nl.multiply, op1=nl.add
    )
    return store(out)


def across_partitions(x: Any) -> Any:
    """Sum over partitions."""
    out = fresh((1, x.shape[1]))
    nisa.tensor_partition_reduce(dst=out, op=nl.add, data=load(x))
    return store(out)


def statistics(x: Any) -> Any:
    """Mean and variance."""
    parts, out = fresh((x.shape[0], 6)), fresh((x.shape[0], 2))
    nisa.bn_stats(dst=parts, data=load(x))
    nisa.bn_aggr(dst=out, data=parts)
    return store(parts), store(out)


def exponentials(x: Any, most: Any) -> Any:
    """exp(x - max) on the vector engine, and sums."""
    out, sums = fresh(x.shape), fresh((x.shape[0], 1))
    nisa.exponential(
        dst=out,
        src=load(x),
        max_value=load(most),
        reduce_res=sums,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    return store(out), store(sums)


def _two() -> tuple[Any, ...]:
    return normal(7, 33).round(decimals=1), normal(7, 33, seed=1).round(decimals=1)


def _with_column() -> tuple[Any, ...]:
    return normal(7, 33), normal(7, 1, seed=1)


def _small() -> tuple[Any, ...]:
    """Arguments of functions stay below pi / 2."""
    return tuple(x.clamp(-1, 1) for x in _with_column())


def _whole(high: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(integers(torch.randint(0, high, (7, 33), generator=generator)) for _ in "ab")


PROGRAMS = {
    **{f"tensor_tensor {op}": Program(binary(op), _two) for op in ARITHMETIC},
    **{f"tensor_tensor {op}": Program(binary(op), lambda: _whole(2**30)) for op in BITS},
    "tensor_tensor add of int32": Program(binary("add"), lambda: _whole(2**29)),
    **{
        f"tensor_scalar {op}{' reversed' * reverse}": Program(
            with_scalar(op, reverse), _with_column, ROUNDING
        )
        for op in ("add", "subtract", "multiply", "maximum", "less")
        for reverse in (False, True)
    },
    "tensor_scalar of bits": Program(shifted_bits, lambda: _whole(2**20)[:1]),
    "scalar_tensor_tensor": Program(three_tiles, lambda: (*_two(), normal(7, 1, seed=4)), ROUNDING),
    "reciprocal": Program(inverse, lambda: (normal(7, 33) + 5,), ROUNDING),
    **{f"activation {op}": Program(function(op), _small, APPROXIMATE) for op in FUNCTIONS},
    **{
        f"activation {op}": Program(
            function(op), lambda: tuple(x.abs() + 0.1 for x in _with_column()), APPROXIMATE
        )
        for op in POSITIVE
    },
    "activation_reduce": Program(activation_sums, lambda: _with_column()[:1], APPROXIMATE),
    **{
        f"tensor_reduce {op}{' negated' * negate}": Program(
            reduced(op, negate), lambda: (normal(7, 3, 11),), ROUNDING
        )
        for op in ("add", "maximum", "minimum", "multiply")
        for negate in (False, True)
    },
    "tensor_scalar_reduce": Program(scalar_sums, lambda: (normal(7, 33),)),
    "tensor_tensor_scan": Program(scan, _two, APPROXIMATE),
    "tensor_partition_reduce": Program(across_partitions, lambda: (normal(77, 33),), ROUNDING),
    "bn_stats": Program(statistics, lambda: (normal(7, 34),), APPROXIMATE),
    "exponential": Program(
        exponentials, lambda: (normal(7, 33), normal(7, 1) + 3), APPROXIMATE, targets=("trn3",)
    ),
}
