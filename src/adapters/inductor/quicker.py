# SPDX-License-Identifier: Apache-2.0
"""Spare inductor work that it repeats for every operator of every kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from torch._inductor import utils
from torch._inductor.codegen import common
from torch._inductor.codegen.wrapper import AllocateLine
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler


@contextmanager
def codegen() -> Iterator[None]:
    """Inside, inductor generates the same code and does not set its dtype rules up each time.

    It has one object of rules, and runs that object's constructor, about 80 us, for every
    operator; a program of three layers has 2900.
    """
    original = DtypePropagationOpsHandler.__init__
    known: list[tuple[int, int]] = []

    def initialise(self: DtypePropagationOpsHandler) -> None:
        rules = len(utils.op_dtype_propagation_rules), len(common.pointwise_overrides_data)
        if known != [rules]:
            original(self)
            known[:] = [rules]

    with mock.patch.object(DtypePropagationOpsHandler, "__init__", initialise):
        yield


@contextmanager
def buffers() -> Iterator[None]:
    """Inside, inductor uses a buffer again wherever it can.

    It would rather allocate where the largest sum of sizes is not reached. In a part of a model
    that is next to nothing, and an allocation costs half a microsecond for each layer.
    """
    with mock.patch.object(AllocateLine, "should_reuse_buffer", return_value=True):
        yield
