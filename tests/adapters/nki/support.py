# SPDX-License-Identifier: Apache-2.0
"""Tensors and refusals for the simulator's tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from trnport.adapters.nki.simulator import RuleViolationError
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator.access import write
from trnport.adapters.nki.simulator.tensor import NkiTensor


def filled(values: Any, buffer: Any = nl.sbuf, dtype: Any = None) -> NkiTensor:
    """A tensor that holds `values`."""
    values = np.asarray(values)
    result = nl.ndarray(values.shape, dtype or values.dtype, buffer)
    write(result, values)
    return result


def counting(shape: tuple[int, ...], buffer: Any = nl.sbuf, dtype: str = "int32") -> NkiTensor:
    """A tensor whose elements are their own positions."""
    return filled(np.arange(np.prod(shape)).reshape(shape).astype(np.int32), buffer, dtype)


@contextlib.contextmanager
def breaks(rule: str) -> Iterator[pytest.ExceptionInfo[RuleViolationError]]:
    """Expect a violation of one rule, with a message that says what and where."""
    with pytest.raises(RuleViolationError) as caught:
        yield caught
    assert caught.value.rule == rule, str(caught.value)
    assert f"[{rule}]" in str(caught.value)
    assert "allowed:" in str(caught.value)
    assert "(page: " in str(caught.value)
