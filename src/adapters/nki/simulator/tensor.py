# SPDX-License-Identifier: Apache-2.0
"""`NkiTensor`: a view of storage as (offset, strides, sizes) in elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnport.adapters.nki.simulator import pattern as pattern_module
from trnport.adapters.nki.simulator import views
from trnport.adapters.nki.simulator.dtypes import Array
from trnport.adapters.nki.simulator.memory import ON_CHIP, MemoryRegion, Storage


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous array, in elements."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


class NkiTensor:
    """A view of one storage. Views share memory; nothing is copied.

    Attributes:
        shape: Sizes.
        strides: In elements of `dtype`.
        offset: First element, in elements of `dtype`.
        dtype: NKI dtype name.
        buffer: The memory.
        name: For messages.
        storage: The memory behind it.
        lookup: How addresses depend on data (`pattern.Lookup`), None for a static view.
    """

    __slots__ = (
        "_array",
        "buffer",
        "dtype",
        "lookup",
        "name",
        "offset",
        "on_chip",
        "shape",
        "storage",
        "strides",
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str,
        storage: Storage,
        buffer: MemoryRegion | None = None,
        name: str = "",
        *,
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
        lookup: Any = None,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.storage = storage
        self.buffer = storage.buffer if buffer is None else buffer
        self.name = name
        self.offset = offset
        self.strides = row_major(shape) if strides is None else strides
        self.lookup = lookup
        self.on_chip = self.buffer in ON_CHIP
        self._array: Array | None = None

    def derive(
        self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, **changes: Any
    ) -> NkiTensor:
        """Return another view of the same storage."""
        return NkiTensor(
            shape,
            changes.get("dtype", self.dtype),
            self.storage,
            self.buffer,
            self.name,
            offset=offset,
            strides=strides,
            lookup=changes.get("lookup", self.lookup),
        )

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def free_size(self) -> int:
        """Elements per partition."""
        count = 1
        for size in self.shape[1:]:
            count *= size
        return count

    @property
    def start_partition(self) -> int:
        """First partition of an on-chip view."""
        row = self.storage.row_bytes // self.itemsize
        return self.storage.partition + self.offset // max(row, 1)

    @property
    def itemsize(self) -> int:
        """Bytes of one element on the device."""
        return views.itemsize(self.dtype)

    def array(self) -> Array:
        """Return the static view's elements; writing to the array writes the storage."""
        array = self._array
        if array is None:
            array = self._array = self.storage.window(
                self.dtype, self.offset, self.shape, self.strides
            )
        return array

    def __repr__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        return f"<NkiTensor{label} {self.shape} {self.dtype} {self.buffer.value}>"

    def __getitem__(self, key: Any) -> NkiTensor:
        return views.index(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(
            "an NkiTensor is written by instructions: nisa.tensor_copy(dst=t[...], src=x)"
        )

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements `start` to `end` (exclusive) of one dimension."""
        return views.slice_dim(self, dim, start, end, step)

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """Reorder dimensions; on chip the first stays first."""
        return views.permute(self, dims)

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Repeat a free dimension of size 1."""
        return views.broadcast(self, dim, size)

    def expand_dim(self, dim: int) -> NkiTensor:
        """Insert a dimension of size 1."""
        return views.expand_dim(self, dim)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Remove a dimension of size 1."""
        return views.squeeze_dim(self, dim)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """Split one dimension; one size may be -1."""
        return views.reshape_dim(self, dim, shape)

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Merge contiguous dimensions, both ends included."""
        return views.flatten_dims(self, start_dim, end_dim)

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        """Same elements in the same order; on chip the partitions stay."""
        return views.reshape(self, shape)

    def rearrange(
        self,
        src_pattern: Sequence[Any],
        dst_pattern: Sequence[Any],
        fixed_sizes: dict[str, int] | None = None,
    ) -> NkiTensor:
        """Split, reorder and merge dimensions by name."""
        return views.rearrange(self, src_pattern, dst_pattern, fixed_sizes)

    def select(self, dim: int, index: Any) -> NkiTensor:
        """Drop a dimension by taking one position, an int or a value known when it runs."""
        return views.select(self, dim, index)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Row `vector_offset[i]` of an HBM tensor for partition i."""
        return views.vector_select(self, dim, vector_offset)

    def view(self, dtype: object) -> NkiTensor:
        """Same bytes as another dtype; the last size scales."""
        return views.view(self, dtype)

    reinterpret_cast = view

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: object = None,
    ) -> NkiTensor:
        """Address the storage by `[[stride, count], ...]` in elements.

        Args:
            pattern: Up to five pairs; on chip the first is [elements per partition, P].
            offset: First element.
            scalar_offset: Register or (1, 1) tensor: steps of `indirect_dim` to add.
            vector_offset: (P, 1) tensor: rows to read or write, HBM only.
            indirect_dim: The dimension the dynamic offset counts in.
            dtype: Reinterpret the storage; the pattern counts in its elements.
        """
        return pattern_module.ap(
            self, pattern, offset, scalar_offset, vector_offset, indirect_dim, dtype
        )

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Columns chosen by data (NeuronCore-v4)."""
        return pattern_module.indirect(self, index, num_elem)

    def is_contiguous(self) -> bool:
        """Tell whether the free dimensions cover memory in order."""
        return views.is_contiguous(self)

    def is_indirect(self) -> bool:
        """Tell whether addresses depend on data."""
        return self.lookup is not None

    def get_pattern(self) -> list[list[int]]:
        """Return `[[stride, count], ...]`."""
        return [[stride, size] for stride, size in zip(self.strides, self.shape, strict=True)]
