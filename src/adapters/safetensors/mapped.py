# SPDX-License-Identifier: Apache-2.0
"""A safetensors file in memory: pages appear when they are read and go right afterwards."""

from __future__ import annotations

import contextlib
import json
import mmap
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

import attrs
import torch
from torch import Tensor

from trnport.core.errors import CheckpointError

TILE = 256, 120
"""Rows and columns of a matrix that are copied together. Both ends stay in the cache, and the
product stays below what PyTorch would share out to threads: loading has threads of its own, and
waiting for PyTorch's thousands of times takes seconds on a busy machine."""

BLOCK = 1 << 20
"""Elements of a vector after which its pages are let go."""

FAULT_AROUND = 64 << 10
"""Bytes that Linux maps around a page that is asked for, if they are in memory."""


@attrs.frozen
class Entry:
    """A tensor in the header: dtype by its name in the format, shape, and its first byte."""

    dtype: str
    shape: tuple[int, ...]
    start: int


class MappedFile:
    """A file whose header is known to be sound.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as stream:
            self._mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            # That nothing may be written to it. Nobody outside this module gets to see it.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            self._bytes = torch.frombuffer(self._mapping, dtype=torch.uint8)
        (length,) = struct.unpack("<Q", self._mapping[:8])
        self._header = json.loads(self._mapping[8 : 8 + length])
        self._data = 8 + length

    def entries(self) -> dict[str, Entry]:
        """Every tensor by name."""
        return {
            name: Entry(item["dtype"], tuple(item["shape"]), self._data + item["data_offsets"][0])
            for name, item in self._header.items()
            if name != "__metadata__"
        }

    def view(self, start: int, num_bytes: int, dtype: torch.dtype) -> Tensor:
        """Bytes of the file as elements.

        Raises:
            CheckpointError: The file has become shorter; reading on would end the process.
        """
        if self._mapping.size() < len(self._mapping):
            raise CheckpointError(
                f"{self.path} has become shorter since it was opened; leave the checkpoint alone "
                "while it is loaded"
            )
        part = self._bytes[start : start + num_bytes]
        if start % dtype.itemsize:
            part = part.clone()
        return part.view(dtype)

    def copy(self, source: Tensor, out: Tensor) -> None:
        """Copy a part of a view block by block, and let go of the pages behind each."""
        for block, place in _blocks(source, out):
            for here, there in _tiles(block, place):
                there.copy_(here)
            self._advise(mmap.MADV_DONTNEED, block)

    def announce(self, source: Tensor) -> None:
        """Let the kernel fetch a part of a view from disk."""
        self._advise(mmap.MADV_WILLNEED, source)

    def _advise(self, advice: int, part: Tensor) -> None:
        start = part.data_ptr() - self._bytes.data_ptr()
        if not 0 <= start < len(self._mapping):  # a copy
            return
        last = sum((n - 1) * step for n, step in zip(part.shape, part.stride(), strict=True))
        stop = start + (last + 1) * part.element_size()
        # A page fault maps pages in front of the one it is about, too.
        start = max(0, start - start % mmap.PAGESIZE - FAULT_AROUND)
        with contextlib.suppress(OSError):  # advice, which some file systems do not take
            self._mapping.madvise(advice, start, stop - start)


def _blocks(source: Tensor, out: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Vectors and matrices of few rows, and where they go."""
    if source.dim() > 2:
        for here, there in zip(source, out, strict=True):
            yield from _blocks(here, there)
    elif source.dim() < 2 or (source.is_contiguous() and out.is_contiguous()):
        flat, place = source.view(-1), out.view(-1)
        yield from zip(flat.split(BLOCK), place.split(BLOCK), strict=True)
    else:
        yield from zip(source.split(TILE[0]), out.split(TILE[0]), strict=True)


def _tiles(block: Tensor, place: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """What is copied at a time."""
    dim, size = (1, TILE[1]) if block.dim() == 2 else (0, TILE[0] * TILE[1])
    return zip(block.split(size, dim), place.split(size, dim), strict=True)
