# SPDX-License-Identifier: Apache-2.0
"""A WeightSource over safetensors files."""

from __future__ import annotations

import math
import os
from pathlib import Path

import attrs
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trnport.adapters.safetensors.layout import find_files
from trnport.adapters.safetensors.mapped import Entry, MappedFile
from trnport.core.errors import CheckpointError
from trnport.core.ports.weights import TensorInfo, TensorSlice, WeightSource
from trnport.core.weights import resolve_box, unknown_tensor

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
"""Names in the file format to dtypes."""

GIT_LFS_POINTER = b"version https://git-lfs"


@attrs.frozen(eq=False)
class SafetensorsSlice:
    """A lazy view of one stored tensor; every read is a copy that the caller owns.

    A view of the mapped file would be cheaper, but would break when the file is changed
    under a running server.
    """

    name: str
    file: MappedFile
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Tensor:
        """Read a box; IndexError when it leaves the tensor."""
        box = resolve_box(index, self.shape)
        out = torch.empty([stop - start for start, stop in box], dtype=self.dtype)
        self.read_into(index, out)
        return out

    def read_into(self, index: slice | tuple[slice, ...], out: Tensor) -> None:
        """Read a box to where it is wanted; IndexError when it leaves the tensor."""
        source = self._view(index)
        if source.shape != out.shape:
            raise ValueError(f"{self.name}: a box of {source.shape} does not fill {out.shape}")
        if out.numel():
            self.file.copy(source, out)

    def announce(self, index: slice | tuple[slice, ...]) -> None:
        """Have a box fetched from disk; IndexError when it leaves the tensor."""
        if math.prod(self.shape):
            self.file.announce(self._view(index))

    def _view(self, index: slice | tuple[slice, ...]) -> Tensor:
        box = resolve_box(index, self.shape)
        count = math.prod(self.shape)
        if count == 0:
            whole = torch.empty(self.shape, dtype=self.dtype)
        else:
            num_bytes = count * self.dtype.itemsize
            whole = self.file.view(self.start, num_bytes, self.dtype).view(self.shape)
        return whole[tuple(slice(*edges) for edges in box)]


class SafetensorsWeightSource(WeightSource):
    """The tensors of a safetensors file, or of a directory of them.

    With a ``model.safetensors.index.json``, the tensors are those that it lists and other
    files are ignored; without one, they are those of all ``*.safetensors`` files. All headers
    are read and checked here, the tensors only when they are sliced. Reads from several
    threads are safe.

    Args:
        path: The file or directory.

    Raises:
        CheckpointError: There are no weights, a file is damaged, the index does not match
            the files, or a tensor is in two files. The message names the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        found: dict[str, SafetensorsSlice] = {}
        for file, listed in find_files(Path(path)).items():
            for view in _views(file, listed):
                if view.name in found:
                    raise CheckpointError(
                        f"{view.name} is in both {found[view.name].file.path} and {file}; "
                        "keep one of the files"
                    )
                found[view.name] = view
        if not found:
            raise CheckpointError(f"{path} holds no tensors; is the download complete?")
        self._views = {name: found[name] for name in sorted(found)}

    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return list(self._views)

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype, from the header. KeyError when there is no such tensor."""
        view = self._find(name)
        return TensorInfo(view.shape, view.dtype)

    def open(self, name: str) -> TensorSlice:
        """A lazy view. KeyError when there is no such tensor."""
        return self._find(name)

    def _find(self, name: str) -> SafetensorsSlice:
        try:
            return self._views[name]
        except KeyError:
            raise unknown_tensor(name, self.names()) from None


def _views(file: Path, listed: frozenset[str] | None) -> list[SafetensorsSlice]:
    """The tensors of one file, of those that the index lists if there is an index."""
    mapped = _open(file)
    entries = mapped.entries()
    missing = sorted((listed or frozenset()) - entries.keys())
    if missing:
        raise CheckpointError(
            f"{file} lacks tensors that the index places in it: {', '.join(missing)}; "
            "file and index are of different downloads"
        )
    names = entries.keys() if listed is None else listed
    return [_view(name, mapped, entries[name]) for name in names]


def _open(file: Path) -> MappedFile:
    try:
        with safe_open(file, framework="pt"):  # it checks the header
            return MappedFile(file)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is damaged: {error}; {_way_out(file)}") from error


def _way_out(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            start = stream.read(len(GIT_LFS_POINTER))
    except OSError:
        return "is it readable?"
    if start == GIT_LFS_POINTER:
        return "it is a Git LFS pointer, fetch the file itself with `git lfs pull`"
    return "download it again"


def _view(name: str, file: MappedFile, entry: Entry) -> SafetensorsSlice:
    dtype = DTYPES.get(entry.dtype)
    if dtype is None:
        raise CheckpointError(f"{file.path}: {name} has dtype {entry.dtype}, which torch lacks")
    return SafetensorsSlice(name, file, entry.shape, dtype, entry.start)
