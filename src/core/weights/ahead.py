# SPDX-License-Identifier: Apache-2.0
"""Announce what will be read next, so that a slow disk works while a tensor is put in place."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from trnport.core.ports.weights import TensorSlice, WeightSource
from trnport.core.weights.plan import Target

WINDOW = 64 << 20
"""Bytes of parameters that are announced before they are read."""


class Announcer:
    """Walks through a model's parameters ahead of whoever reads them.

    Args:
        targets: What is read, in this order.
        source: The checkpoint.
        rank: Given to the loaders.
    """

    def __init__(self, targets: Sequence[Target], source: WeightSource, rank: int) -> None:
        self._targets = targets
        self._source = source
        self._rank = rank
        self._next = 0
        self._ahead = 0

    def announce_after(self, done: int) -> None:
        """Announce a window of targets; ``done`` of them are read or about to be."""
        if done and done <= self._next:
            self._ahead -= _num_bytes(self._targets[done - 1])
        self._next = max(self._next, done)
        while self._ahead < WINDOW and self._next < len(self._targets):
            target = self._targets[self._next]
            self._announce(target)
            self._ahead += _num_bytes(target)
            self._next += 1

    def _announce(self, target: Target) -> None:
        fill = target.loader.fill
        if fill is None:
            return
        # Whatever is wrong with it is told where it is read.
        with contextlib.suppress(Exception):
            slices: list[TensorSlice] = [_Announced(self._source.open(k)) for k in target.keys]
            fill(slices, self._rank, torch.empty(target.shape, dtype=target.dtype, device="meta"))


@attrs.frozen(eq=False)
class _Announced:
    """A stored tensor whose reads are announced instead."""

    inner: TensorSlice

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Tensor:
        raise NotImplementedError("what is announced cannot be looked at")

    def read_into(self, index: slice | tuple[slice, ...], out: Tensor) -> None:
        del out
        self.inner.announce(index)

    def announce(self, index: slice | tuple[slice, ...]) -> None:
        self.inner.announce(index)


def _num_bytes(target: Target) -> int:
    return math.prod(target.shape) * target.dtype.itemsize
