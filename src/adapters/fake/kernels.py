# SPDX-License-Identifier: Apache-2.0
"""Kernels that check, record or poison, around kernels that compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from trnport.adapters.fake.contracts import check_arguments, check_results
from trnport.adapters.fake.errors import ContractViolationError
from trnport.adapters.fake.reads import cache_reads, padding_rows
from trnport.adapters.fake.wrapping import WrappedKernels
from trnport.core.kernels import with_operator
from trnport.core.kv.slots import PAD_SLOT
from trnport.core.ports.kernels import Kernels
from trnport.core.ports.weights import TensorInfo


class StrictKernels(WrappedKernels):
    """Refuses calls that break the port's contract, and results that do.

    Checked are shapes, integer dtypes, slots (in range, distinct, never block 0), and that a
    row's block table backs every position the row reads.

    >>> import torch
    >>> from trnport.adapters.torch_cpu import TorchCpuKernels
    >>> kernels = StrictKernels(TorchCpuKernels())
    >>> row, cache = torch.ones(1, 2, 4), torch.zeros(3, 2, 8, 4)
    >>> kernels.kv_write(row, row, cache, cache.clone(), torch.tensor([5]))
    Traceback (most recent call last):
    ...
    trnport.adapters.fake.errors.ContractViolationError: kv_write: slot 5 lies in block 0, ...

    Args:
        inner: The adapter that computes.
    """

    label = "strict"

    def around(self, operator: str, arguments: dict[str, Any]) -> Any:
        """Check, compute, check.

        Raises:
            ContractViolationError: Names the operator, the argument or result, and the fault.
        """
        sizes = check_arguments(operator, arguments)
        results = self.forward(operator, arguments)
        check_results(operator, arguments, results, sizes)
        return results


@attrs.frozen
class KernelCall:
    """One recorded call; tensors are recorded as their shape and dtype.

    Attributes:
        operator: Name of the operator.
        arguments: All arguments by the port's parameter names, defaults included.
        results: What it returned, as a tuple; empty for ``kv_write``.
    """

    operator: str
    arguments: dict[str, Any]
    results: tuple[TensorInfo, ...]


class RecordingKernels(StrictKernels):
    """Records every call, after the checks of :class:`StrictKernels`.

    >>> import torch
    >>> from trnport.adapters.torch_cpu import TorchCpuKernels
    >>> kernels = RecordingKernels(TorchCpuKernels(), replace={"linear": lambda x, w, b: x @ w + 1})
    >>> kernels.linear(torch.ones(1, 2), torch.zeros(2, 3))
    tensor([[1., 1., 1.]])
    >>> kernels.operators, kernels.calls[0].arguments["weight"].shape
    (['linear'], (2, 3))

    Args:
        inner: The adapter that computes.
        replace: Operator name to a callable that takes its place; see
            :func:`trnport.core.kernels.with_operator`.

    Attributes:
        calls: All calls in order; clear it as any list.
    """

    label = "recording"

    def __init__(
        self, inner: Kernels, replace: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        super().__init__(with_operator(inner, **replace) if replace else inner)
        self.calls: list[KernelCall] = []

    @property
    def operators(self) -> list[str]:
        """Names of the operators called, in order."""
        return [call.operator for call in self.calls]

    def around(self, operator: str, arguments: dict[str, Any]) -> Any:
        """Check, compute, record."""
        described = {name: _describe(value) for name, value in arguments.items()}
        results = super().around(operator, arguments)
        returned = results if isinstance(results, tuple) else (results,)
        infos = tuple(_describe(x) for x in returned if isinstance(x, Tensor))
        self.calls.append(KernelCall(operator, described, infos))
        return results


class PoisoningKernels(WrappedKernels):
    """Makes everything that must be inert toxic, to prove that it is.

    Padding rows go into the inner adapter as NaN, together with a copy of the cache in which
    every slot is NaN that lies beyond a row's length or in no row's table. What comes out for
    padding rows is replaced: by NaN after prefill, by a large finite number after decode. Real
    rows must not move::

        assert torch.equal(run(TorchCpuKernels()), run(PoisoningKernels(TorchCpuKernels())))

    >>> import torch
    >>> from trnport.adapters.torch_cpu import TorchCpuKernels
    >>> x, valid = torch.ones(2, 1, 4), torch.tensor([True, False])
    >>> out = PoisoningKernels(TorchCpuKernels()).prefill_attention(x, x, x, valid, scale=0.5)
    >>> out[:, 0, 0]
    tensor([1., nan])

    Args:
        inner: The adapter under suspicion.
    """

    label = "poisoning"
    decode_padding = 1e4
    """What padding rows hold after decode: finite, as the port promises, and far off."""

    def around(self, operator: str, arguments: dict[str, Any]) -> Any:
        """Poison, compute, poison.

        Raises:
            ContractViolationError: A padding row came out of decode with NaN or infinity.
        """
        arguments = dict(arguments)
        if "block_table" in arguments:
            slots = cache_reads(operator, arguments, window=None).slots
            for name in ("k_cache", "v_cache"):
                arguments[name] = _keep_slots(arguments[name], slots)
        padding = _padding(operator, arguments)
        if padding is None:
            return self.forward(operator, arguments)
        for name in {"q", "k", "v"} & arguments.keys():
            arguments[name] = _poison_rows(arguments[name], padding, torch.nan)
        out = self.forward(operator, arguments)
        if operator == "kv_write":
            return out
        if operator == "decode_attention":
            if not out[padding].isfinite().all():
                raise ContractViolationError(f"{self.inner.name}: decode padding is not finite")
            return _poison_rows(out, padding, self.decode_padding)
        return _poison_rows(out, padding, torch.nan)


def _describe(value: Any) -> Any:
    return TensorInfo(tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value


def _padding(operator: str, arguments: dict[str, Any]) -> Tensor | None:
    """Padding rows ``[T]``, or None for an operator that does not know its own."""
    if operator == "kv_write":
        return arguments["slot_mapping"] == PAD_SLOT
    if operator == "decode_attention":
        return padding_rows(arguments["block_table"])
    if "valid" in arguments:
        return ~arguments["valid"]
    return None


def _poison_rows(x: Tensor, rows: Tensor, value: float) -> Tensor:
    return torch.where(rows[:, None, None], value, x)


def _keep_slots(cache: Tensor, slots: Tensor) -> Tensor:
    """A copy of the cache in which all other slots hold NaN."""
    block_size = cache.shape[2]
    where = (slots // block_size, slice(None), slots % block_size)
    kept = torch.full_like(cache, torch.nan)
    kept[where] = cache[where]
    return kept
