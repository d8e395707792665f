# SPDX-License-Identifier: Apache-2.0
"""Arrays of numpy and torch as HBM tensors, and back. Arguments share memory where they can."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from trnport.adapters.nki.simulator.dtypes import FLOATS, Array, dtype_name, stored_dtype
from trnport.adapters.nki.simulator.memory import SHARED_HBM, Storage
from trnport.adapters.nki.simulator.rules import Rule, add, violation
from trnport.adapters.nki.simulator.tensor import NkiTensor, row_major

add(
    Rule(
        "NKI-LIST-ARGUMENT",
        "Kernel arguments are tensors, constants, tuples and configuration objects, not lists.",
        "NKI 0.3 release notes: kernel arguments",
        relaxed=True,
    ),
    Rule(
        "NKI-OUTPUT",
        "A kernel returns tensors in nl.shared_hbm.",
        "NKI 0.3 release notes: outputs",
        relaxed=True,
    ),
)


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


@attrs.define
class Arguments:
    """Arguments of one launch as kernels see them.

    Attributes:
        precise: Hold floats as float32.
        originals: What the caller passed, by storage.
        uses_torch: Whether a torch tensor was among them.
    """

    precise: bool
    originals: dict[int, tuple[Storage, Any]] = attrs.field(factory=dict)
    uses_torch: bool = False
    _seen: dict[int, NkiTensor] = attrs.field(factory=dict)
    _write_back: list[Callable[[], None]] = attrs.field(factory=list)

    def wrap(self, value: Any, name: str) -> Any:
        """Return a kernel's view of one argument; constants pass unchanged."""
        if isinstance(value, np.ndarray) or _is_torch(value):
            known = self._seen.get(id(value))
            if known is None:
                known = self._seen[id(value)] = self._tensor(value, name)
            return known
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, list):
            violation("NKI-LIST-ARGUMENT", "launch", name, "a list", "a tuple")
            return [self.wrap(item, f"{name}[{i}]") for i, item in enumerate(value)]
        if type(value) is tuple:
            return tuple([self.wrap(item, f"{name}[{i}]") for i, item in enumerate(value)])
        if type(value) is dict:
            return {key: self.wrap(item, f"{name}[{key!r}]") for key, item in value.items()}
        return value

    def _tensor(self, value: Any, name: str) -> NkiTensor:
        if _is_torch(value):
            self.uses_torch = True
            dtype, shape = dtype_name(value.dtype), tuple(value.shape)
            source = value.detach()
            flat = source.contiguous().reshape(-1).view(_torch().uint8).numpy()
            shares = source.is_contiguous()
        else:
            dtype, shape = dtype_name(value.dtype), value.shape
            flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            shares = value.flags.c_contiguous and value.flags.writeable
            if not value.flags.writeable:
                flat = flat.copy()
        raw = flat
        if self.precise and dtype in FLOATS and dtype != "float32":
            raw = flat.view(stored_dtype(dtype)).astype(np.float32).view(np.uint8)
            self._return_rounded(raw, flat, dtype)
        if not shares:
            self._return_copy(value, flat, dtype, shape)
        storage = Storage(shape, dtype, SHARED_HBM, name=name, raw=raw, precise=self.precise)
        self.originals[id(storage)] = (storage, value)
        return NkiTensor(shape, dtype, storage, SHARED_HBM, name)

    def _return_rounded(self, raw: Array, flat: Array, dtype: str) -> None:
        before = raw.copy()

        def write() -> None:
            if not np.array_equal(raw, before):
                flat.view(stored_dtype(dtype))[...] = raw.view(np.float32)

        self._write_back.append(write)

    def _return_copy(self, value: Any, flat: Array, dtype: str, shape: tuple[int, ...]) -> None:
        before = flat.copy()

        def write() -> None:
            if np.array_equal(flat, before):
                return
            if _is_torch(value):
                value.detach().copy_(to_torch(flat, dtype, shape))
            else:
                value[...] = flat.view(stored_dtype(dtype)).reshape(shape)

        self._write_back.append(write)

    def finish(self) -> None:
        """Carry writes back to arguments whose memory could not be shared."""
        for write in self._write_back:
            write()

    def unwrap(self, value: Any) -> Any:
        """Return a kernel's result in the caller's framework.

        Raises:
            RuleViolationError: A result is not in shared HBM.
        """
        if isinstance(value, tuple | list):
            return type(value)([self.unwrap(item) for item in value])
        if isinstance(value, dict):
            return {key: self.unwrap(item) for key, item in value.items()}
        if not isinstance(value, NkiTensor):
            return value
        if value.buffer is not SHARED_HBM:
            violation("NKI-OUTPUT", "return", f"{value}", value.buffer.value, "shared_hbm")
        known = self.originals.get(id(value.storage))
        if known is not None and value.shape == known[0].shape and value.dtype == known[0].dtype:
            return known[1]
        found = np.ascontiguousarray(value.array())
        if not self.uses_torch:
            return found.copy()
        name = dtype_name(found.dtype)
        return to_torch(found.reshape(-1).view(np.uint8), name, value.shape)


def _torch() -> Any:
    return sys.modules["torch"]


def to_torch(flat: Array, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return bytes as a torch tensor with memory of its own."""
    torch = _torch()
    kind = getattr(torch, dtype, None)
    if kind is None:  # torch has no IEEE-like float8_e4m3: values survive as float32
        kind = torch.float32
        flat = flat.view(stored_dtype(dtype)).astype(np.float32).view(np.uint8)
    return torch.from_numpy(flat.copy()).view(kind).reshape(shape)


__all__ = ["Arguments", "row_major", "to_torch"]
