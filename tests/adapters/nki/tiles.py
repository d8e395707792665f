# SPDX-License-Identifier: Apache-2.0
"""Tiles for tests of single instructions: made from plain numbers, read back as plain numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator.dtypes import stored_dtype


def tile(values: Any, dtype: str = "float32", buffer: Any = nl.sbuf) -> Any:
    """A tile on the current core whose storage holds `values`, [P, F...]."""
    array = np.asarray(values)
    t = nl.ndarray(array.shape, dtype, buffer)
    with np.errstate(all="ignore"):
        t.array()[...] = array.astype(stored_dtype(dtype))
    t.storage.mask = None
    return t


def fresh(shape: tuple[int, ...], dtype: str = "float32", buffer: Any = nl.sbuf) -> Any:
    """A tile that nobody wrote."""
    return nl.ndarray(shape, dtype, buffer)


def plain(t: Any) -> Any:
    """A tile's elements as an array of Python numbers, exact."""
    array = t.array()
    if array.dtype.kind in "iub":
        return array.astype(object)
    return array.astype(np.float64).astype(object)


def indices(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every index of a shape."""
    return itertools.product(*(range(size) for size in shape))
