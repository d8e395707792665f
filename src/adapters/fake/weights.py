# SPDX-License-Identifier: Apache-2.0
"""A WeightSource that remembers what was read, and misbehaves when told to."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection

import attrs
import torch
from torch import Tensor

from trnport.core.errors import CheckpointError
from trnport.core.ports.weights import TensorInfo, TensorSlice, WeightSource
from trnport.core.weights import resolve_box


@attrs.frozen
class WeightRead:
    """One read.

    Attributes:
        name: The tensor.
        box: [start, stop) of every dimension.
        nbytes: Bytes read, in the stored dtype.
    """

    name: str
    box: tuple[tuple[int, int], ...]
    nbytes: int


@attrs.frozen(eq=False)
class RecordingSlice:
    """A lazy view that reports each read to its source."""

    name: str
    inner: TensorSlice
    source: RecordingWeightSource

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return tuple(self.inner.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""
        return self.inner.dtype

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Tensor:
        """Read a box and report it."""
        tensor = self.inner[index]
        self.source.note_read(self._read(index), tensor)
        return tensor

    def read_into(self, index: slice | tuple[slice, ...], out: Tensor) -> None:
        """Read a box to where it is wanted and report it."""
        self.inner.read_into(index, out)
        self.source.note_read(self._read(index), out)

    def announce(self, index: slice | tuple[slice, ...]) -> None:
        """Pass it on and report it."""
        self.inner.announce(index)
        self.source.announced.append(self._read(index))

    def _read(self, index: slice | tuple[slice, ...]) -> WeightRead:
        box = resolve_box(index, self.shape)
        count = math.prod(stop - start for start, stop in box)
        return WeightRead(self.name, box, count * self.dtype.itemsize)


class RecordingWeightSource(WeightSource):
    """Wraps another WeightSource and records every read, from any thread.

    Names, shapes and dtypes may be asked for freely: only reads are recorded. A test that
    each rank reads its own share compares :attr:`reads` or :meth:`bytes_read` per rank::

        source = RecordingWeightSource(InMemoryWeightSource(tensors))
        load_weights(model, source, mapping, rank=1)
        assert source.bytes_read("lm_head.weight") == expected

    Args:
        inner: Where tensors really come from.
        failing: Tensors whose every read raises CheckpointError, as a damaged disk would.
        poisoned: Tensors whose reads return NaN (or the largest value of an integer dtype),
            to find out whether anything depends on them.
    """

    def __init__(
        self,
        inner: WeightSource,
        *,
        failing: Collection[str] = (),
        poisoned: Collection[str] = (),
    ) -> None:
        self.inner = inner
        self.failing = set(failing)
        self.poisoned = set(poisoned)
        self.reads: list[WeightRead] = []
        self.announced: list[WeightRead] = []
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return list(self.inner.names())

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype. KeyError when there is no such tensor."""
        return self.inner.info(name)

    def open(self, name: str) -> TensorSlice:
        """A recording view. KeyError when there is no such tensor."""
        return RecordingSlice(name, self.inner.open(name), self)

    def bytes_read(self, name: str | None = None) -> int:
        """Bytes read so far, of one tensor or of all."""
        return sum(read.nbytes for read in self.reads if name in {None, read.name})

    def clear(self) -> None:
        """Forget the reads so far."""
        with self._lock:
            self.reads.clear()
            self.announced.clear()

    def note_read(self, read: WeightRead, tensor: Tensor) -> None:
        """Record a read, and spoil its result if that was asked for.

        Raises:
            CheckpointError: The tensor is one of ``failing``.
        """
        with self._lock:
            self.reads.append(read)
        if read.name in self.failing:
            raise CheckpointError(f"{read.name}: made to fail by RecordingWeightSource")
        if read.name in self.poisoned:
            tensor.fill_(torch.nan if tensor.is_floating_point() else _largest(tensor.dtype))


def _largest(dtype: torch.dtype) -> int:
    return 1 if dtype == torch.bool else torch.iinfo(dtype).max
