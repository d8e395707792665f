# SPDX-License-Identifier: Apache-2.0
"""Oracles in plain Python: rounding, ALU operators and activations, one number at a time.

Nothing here comes from the simulator, from numpy's arithmetic or from ml_dtypes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

#: exponent bits, mantissa bits
FORMATS = {
    "float32": (8, 23),
    "tfloat32": (8, 10),
    "bfloat16": (8, 7),
    "float16": (5, 10),
    "float8_e5m2": (5, 2),
    "float8_e4m3": (4, 3),
}
BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32}
FLOATS = tuple(FORMATS)
INTEGERS = tuple(BITS)


def limits(name: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype."""
    if name.startswith("u"):
        return 0, 2 ** BITS[name] - 1
    return -(2 ** (BITS[name] - 1)), 2 ** (BITS[name] - 1) - 1


def round_float(value: float, name: str) -> float:
    """Nearest-even rounding of a float to an IEEE-like format, with denormals and infinities."""
    if math.isnan(value) or math.isinf(value) or value == 0:
        return value
    exponent_bits, mantissa_bits = FORMATS[name]
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = max(math.frexp(value)[1] - 1, 1 - bias)
    scaled = math.ldexp(value, mantissa_bits - exponent)
    rounded = math.ldexp(round(scaled), exponent - mantissa_bits)
    largest = math.ldexp(2 - 2.0**-mantissa_bits, bias)
    if abs(rounded) > largest:
        return math.copysign(math.inf, value)
    return math.copysign(rounded, value)


def f32(value: float) -> float:
    """A double rounded to single precision."""
    return round_float(value, "float32")


def store(value: float, name: str) -> float:
    """What a result in fp32 becomes when written to a dtype."""
    if name in FORMATS:
        return round_float(f32(value), name)
    low, high = limits(name)
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(round(f32(value)), low), high)


def store_int(value: int, name: str) -> float:
    """What an exact integer result becomes when written to a dtype."""
    if name in FORMATS:
        return round_float(f32(float(value)), name)
    low, high = limits(name)
    return min(max(value, low), high)


def bits_of(value: float, name: str) -> int:
    """The bit pattern of an integer value."""
    return int(value) % 2 ** BITS[name]


def of_bits(bits: int, name: str) -> int:
    """The integer value of a bit pattern, cut to the dtype's width."""
    bits %= 2 ** BITS[name]
    if not name.startswith("u") and bits >= 2 ** (BITS[name] - 1):
        bits -= 2 ** BITS[name]
    return bits


def same(got: float, expected: float) -> bool:
    """Equality that tells -0.0 from 0.0 and takes NaN as equal to NaN."""
    if math.isnan(expected) or math.isnan(got):
        return math.isnan(expected) and math.isnan(got)
    return got == expected and math.copysign(1, got) == math.copysign(1, expected)


def close(got: float, expected: float, relative: float = 2e-6, absolute: float = 1e-7) -> bool:
    """Closeness for results of functions that fp32 hardware approximates."""
    if math.isnan(expected) or math.isinf(expected):
        return same(got, expected)
    return abs(got - expected) <= absolute + relative * abs(expected)


def _maximum(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _minimum(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)


def _truth(value: bool) -> float:
    return 1.0 if value else 0.0


#: Binary arithmetic operators over fp32 values.
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: f32(a + b),
    "subtract": lambda a, b: f32(a - b),
    "multiply": lambda a, b: f32(a * b),
    "maximum": _maximum,
    "minimum": _minimum,
    "equal": lambda a, b: _truth(a == b),
    "not_equal": lambda a, b: _truth(a != b),
    "greater": lambda a, b: _truth(a > b),
    "greater_equal": lambda a, b: _truth(a >= b),
    "less": lambda a, b: _truth(a < b),
    "less_equal": lambda a, b: _truth(a <= b),
    "logical_and": lambda a, b: _truth(a != 0 and b != 0),
    "logical_or": lambda a, b: _truth(a != 0 or b != 0),
    "logical_xor": lambda a, b: _truth((a != 0) != (b != 0)),
}
ABSOLUTE: dict[str, Callable[[float, float], float]] = {
    "abs_max": lambda a, b: a if abs(a) > abs(b) else b,
    "abs_min": lambda a, b: a if abs(a) < abs(b) else b,
}
#: Bitvec operators over bit patterns; the third argument is the width.
BITVEC: dict[str, Callable[[int, int, int], int]] = {
    "bitwise_and": lambda a, b, _: a & b,
    "bitwise_or": lambda a, b, _: a | b,
    "bitwise_xor": lambda a, b, _: a ^ b,
    "left_shift": lambda a, b, width: a << b if b < width else 0,
    "right_shift": lambda a, b, width: a >> b if b < width else 0,
}


def float_bits(value: float) -> int:
    """The 32 bits of an fp32 value."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _normal(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _cumulative(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _gelu_tanh(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_sigmoid_dx(x: float) -> float:
    s = sigmoid(1.702 * x)
    return s + 1.702 * x * s * (1 - s)


#: Activations by name, over ordinary finite inputs.
ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "sigmoid": sigmoid,
    "relu": lambda x: x if x > 0 else 0.0,
    "gelu": lambda x: x * _cumulative(x),
    "gelu_dx": lambda x: _cumulative(x) + x * _normal(x),
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "silu": lambda x: x * sigmoid(x),
    "silu_dx": lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))),
    "tanh": math.tanh,
    "softplus": softplus,
    "mish": lambda x: x * math.tanh(softplus(x)),
    "erf": math.erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * math.exp(-x * x),
    "exp": math.exp,
    "log": math.log,
    "sin": math.sin,
    "arctan": math.atan,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sign": lambda x: float((x > 0) - (x < 0)),
    "abs": abs,
}
