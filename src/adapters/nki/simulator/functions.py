# SPDX-License-Identifier: Apache-2.0
"""Activation functions of the scalar engine in fp32, with their valid input ranges.

The engine approximates them by piecewise polynomials that nobody publishes; here they are exact to
fp32, except where the documentation says what comes out beyond the valid range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trnport.adapters.nki.simulator.ops import op_name
from trnport.adapters.nki.simulator.rules_isa import violation

__all__ = ["activate", "activation_name", "exp"]

Float = npt.NDArray[np.float32]

_HALF, _ONE, _TWO = np.float32(0.5), np.float32(1), np.float32(2)
_PI = np.float32(np.pi)
_ROOT_HALF = np.float32(np.sqrt(0.5))
_NORMAL = np.float32(1 / np.sqrt(2 * np.pi))
_ROOT_2_OVER_PI = np.float32(np.sqrt(2 / np.pi))
_2_OVER_ROOT_PI = np.float32(2 / np.sqrt(np.pi))
_CUBIC = np.float32(0.044715)
_SIGMOID_GELU = np.float32(1.702)

#: Smallest and largest magnitude for which the engine's result is valid.
_RANGES: dict[str, tuple[float, float]] = {
    "log": (2.0**-64, 2.0**64),
    "sqrt": (2.0**-116, 2.0**118),
    "rsqrt": (2.0**-87, 2.0**97),
    "reciprocal": (2.0**-42, 2.0**42),
    "sin": (0.0, float(_PI)),
    "arctan": (0.0, float(np.float32(np.pi / 2))),
}
_SIGNED = {"sin", "arctan", "reciprocal"}


def _torch(function: Callable[[torch.Tensor], torch.Tensor], x: Float) -> Float:
    return function(torch.from_numpy(np.ascontiguousarray(x))).numpy()


def exp(x: Float) -> Float:
    """E to the x in fp32."""
    return np.exp(x)


def _sigmoid(x: Float) -> Float:
    return _ONE / (_ONE + np.exp(-x))


def _phi(x: Float) -> Float:
    return _HALF * _torch(torch.special.erfc, -x * _ROOT_HALF)


def _density(x: Float) -> Float:
    return _NORMAL * np.exp(-_HALF * x * x)


def _softplus(x: Float) -> Float:
    return np.maximum(x, np.float32(0)) + np.log1p(np.exp(-np.abs(x)))


def _tail(x: Float, value: Float) -> Float:
    """X times a factor that vanishes on the left: 0 at minus infinity, not NaN."""
    return np.where(np.isneginf(x), np.float32(0), x * value)


def _gelu_dx(x: Float) -> Float:
    return _phi(x) + np.where(np.isinf(x), np.float32(0), x * _density(x))


def _gelu_tanh(x: Float) -> Float:
    return _tail(x, _HALF * (_ONE + np.tanh(_ROOT_2_OVER_PI * (x + _CUBIC * x * x * x))))


def _gelu_sigmoid_dx(x: Float) -> Float:
    s = _sigmoid(_SIGMOID_GELU * x)
    return s + np.where(np.isinf(x), np.float32(0), _SIGMOID_GELU * x * s * (_ONE - s))


def _silu_dx(x: Float) -> Float:
    s = _sigmoid(x)
    return s + np.where(np.isinf(x), np.float32(0), x * s * (_ONE - s))


def _sin(x: Float) -> Float:
    """The sine; a cubic through its zero at pi beyond, as the engine has no range reduction."""
    beyond = np.abs(x) - _PI
    cubic = np.sign(x) * (beyond * beyond * beyond / np.float32(6) - beyond)
    return np.where(np.abs(x) <= _PI, np.sin(x), cubic)


_FUNCTIONS: dict[str, Callable[[Float], Any]] = {
    "copy": lambda x: x,
    "square": np.square,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "gelu": lambda x: _tail(x, _phi(x)),
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": lambda x: _tail(x, _sigmoid(_SIGMOID_GELU * x)),
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "silu": lambda x: _tail(x, _sigmoid(x)),
    "silu_dx": _silu_dx,
    "tanh": np.tanh,
    "softplus": _softplus,
    "mish": lambda x: _tail(x, np.tanh(_softplus(x))),
    "erf": lambda x: _torch(torch.erf, x),
    "erf_dx": lambda x: _2_OVER_ROOT_PI * np.exp(-x * x),
    "exp": exp,
    "log": np.log,
    "sin": _sin,
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: _ONE / np.sqrt(x),
    "reciprocal": lambda x: _ONE / x,
    "sign": np.sign,
    "abs": np.abs,
}


def activation_name(instruction: str, op: Any, extra: tuple[str, ...] = ()) -> str:
    """The name of an activation function.

    Args:
        instruction: Named in messages.
        op: What the kernel passed.
        extra: Functions that only this instruction has.

    Raises:
        RuleViolationError: The scalar engine has no such function.
    """
    name = op_name(op)
    if name not in _FUNCTIONS and name not in extra:
        known = ", ".join(sorted((*_FUNCTIONS, *extra)))
        violation("NKI-ACT-FUNCTION", instruction, "op", name, known)
    return name


def activate(instruction: str, name: str, x: Float) -> Float:
    """Apply an activation function.

    Args:
        instruction: Named in messages.
        name: Result of `activation_name`.
        x: Inputs after scale and bias.

    Raises:
        RuleViolationError: An input lies outside the valid range (strict launches). Otherwise the
            result there is NaN, but for `sin`, whose extrapolation is documented.
    """
    limits = _RANGES.get(name)
    if limits is None:
        return _FUNCTIONS[name](x)
    size = np.abs(x) if name in _SIGNED else x
    outside = (size < limits[0]) | (size > limits[1])
    if not outside.any():
        return _FUNCTIONS[name](x)
    sign = "+-" if name in _SIGNED else ""
    limit = f"{sign}[{limits[0]:.6g}, {limits[1]:.6g}]"
    worst = float(x[outside].flat[0])
    violation("NKI-ACT-RANGE", instruction, f"input of {name}", worst, limit)
    values = _FUNCTIONS[name](x)
    return values if name == "sin" else np.where(outside, np.float32(np.nan), values)
