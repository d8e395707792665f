# SPDX-License-Identifier: Apache-2.0
"""Dtype names, what numpy stores for them, and the casts of the hardware.

A dtype is its name, a plain string: `nl.bfloat16 == "bfloat16"`. Casts to floats round to nearest
even. Casts to integers round to nearest even and saturate.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# The packed MX types hold four elements in one word; instructions unpack the bits themselves.
PACKED = {"float8_e5m2_x4": np.uint32, "float8_e4m3fn_x4": np.uint32, "float4_e2m1fn_x4": np.uint16}

_STORED: dict[str, np.dtype] = {
    name: np.dtype(kind)
    for name, kind in {
        "bool": np.bool_,
        "int8": np.int8,
        "int16": np.int16,
        "int32": np.int32,
        "uint8": np.uint8,
        "uint16": np.uint16,
        "uint32": np.uint32,
        "float16": np.float16,
        "float32": np.float32,
        "tfloat32": np.float32,
        "bfloat16": ml_dtypes.bfloat16,
        "float8_e4m3": ml_dtypes.float8_e4m3,
        "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
        "float8_e5m2": ml_dtypes.float8_e5m2,
        "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
        **PACKED,
    }.items()
}

NAMES = tuple(_STORED)
FLOATS = frozenset(
    {"float16", "float32", "tfloat32", "bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"}
)
INTEGERS = frozenset({"int8", "int16", "int32", "uint8", "uint16", "uint32"})
_RANGES = {
    name: (int(np.iinfo(_STORED[name]).min), int(np.iinfo(_STORED[name]).max)) for name in INTEGERS
}
_FLOAT32 = np.dtype(np.float32)
_BEYOND_INT32 = np.float32(2.0**34)  # beyond every integer dtype, exact as int64


def dtype_name(dtype: object) -> str:
    """Return the NKI name of a dtype given as a name, a numpy, ml_dtypes or torch dtype.

    Raises:
        TypeError: NKI has no such dtype.
    """
    if isinstance(dtype, str) and dtype in _STORED:
        return dtype
    name = str(dtype).removeprefix("torch.")
    if name not in _STORED:
        try:
            name = np.dtype(dtype).name  # type: ignore[call-overload]
        except TypeError:
            name = str(dtype)
    if name not in _STORED:
        raise TypeError(f"dtype is {dtype!r}; NKI has {', '.join(NAMES)}")
    return name


def itemsize(name: str) -> int:
    """Bytes of one element on the device."""
    return _STORED[name].itemsize


def stored_dtype(name: str, precise: bool = False) -> np.dtype:
    """Return the numpy dtype that holds elements of `name`.

    Args:
        name: NKI dtype.
        precise: Hold every float dtype as float32, to tell a logic error from rounding.
    """
    if precise and name in FLOATS:
        return _FLOAT32
    return _STORED[name]


def is_integer(name: str) -> bool:
    """Tell whether arithmetic may treat the dtype as exact integers."""
    return name in INTEGERS


def to_float32(values: Array) -> npt.NDArray[np.float32]:
    """Return values as float32, without a copy where they are float32 already."""
    return values.astype(np.float32, copy=False)


def cast(values: Array, name: str, precise: bool = False) -> Array:
    """Cast values to what storage of dtype `name` holds, with the hardware's rounding.

    Args:
        values: Any numeric dtype, any shape.
        name: NKI dtype.
        precise: See `stored_dtype`.
    """
    stored = stored_dtype(name, precise)
    if values.dtype == stored and name != "tfloat32":
        return values
    if name in INTEGERS:
        return _to_integer(values, name, stored)
    if name == "tfloat32" and not precise:
        return _round_tfloat32(values.astype(np.float32))
    if name in PACKED:
        return values.astype(stored)
    with np.errstate(over="ignore", invalid="ignore"):
        return to_float32(values).astype(stored)


def _to_integer(values: Array, name: str, stored: np.dtype) -> Array:
    low, high = _RANGES[name]
    if values.dtype.kind not in "iub":
        whole = np.rint(np.nan_to_num(to_float32(values), nan=0.0, posinf=np.inf, neginf=-np.inf))
        values = np.clip(whole, -_BEYOND_INT32, _BEYOND_INT32).astype(np.int64)
    elif values.dtype.kind == "b":
        return values.astype(stored)
    return np.clip(values.astype(np.int64, copy=False), low, high).astype(stored)


def _round_tfloat32(values: Array) -> Array:
    """Round float32 to a 10-bit mantissa, to nearest even."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(
        0xFFFFE000
    )
    return np.where(np.isfinite(values), rounded.view(np.float32), values)
