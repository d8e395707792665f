# SPDX-License-Identifier: Apache-2.0
"""Count what our kernels do in a call of an operator, in the simulator."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import attrs

from trnport.adapters.nki.adapter import NkiKernels
from trnport.adapters.nki.counting import launches
from trnport.adapters.nki.execute import Machine
from trnport.adapters.nki.nki import REAL
from trnport.adapters.nki.roofline.cost import CoreCost
from trnport.adapters.nki.roofline.extrapolate import Cores, extrapolate
from trnport.adapters.nki.simulator.targets import TARGETS
from trnport.core.errors import ConfigError
from trnport.core.kernel_calls import KernelCall, Shape, invoke
from trnport.core.kernels import operator_names
from trnport.core.ports.kernels import Kernels


@attrs.frozen
class Axis:
    """A size along which a kernel repeats itself.

    Attributes:
        dims: Parameters and their dimensions that have this size, or a multiple of it.
        step: What repeats.
        degree: How counts grow.
        split: Whether two cores share the steps.
    """

    dims: tuple[tuple[str, int], ...]
    step: int
    degree: int = 1
    split: bool = False


def _tokens(*names: str, step: int = 512, degree: int = 1, split: bool = False) -> Axis:
    return Axis(tuple((name, 0) for name in names), step, degree, split)


_COLUMNS = Axis((("weight", 1), ("bias", 0)), 512, split=True)
_INNER = Axis(
    (("gate_weight", 1), ("up_weight", 1), ("down_weight", 0), ("gate_bias", 0), ("up_bias", 0)),
    256,
    split=True,
)
_HEADS = Axis((("k", 1), ("v", 1), ("q", 1), ("sinks", 0)), 1, split=True)
_CACHE_HEADS = Axis((("k_cache", 1), ("v_cache", 1), ("q", 1), ("sinks", 0)), 1, split=True)

AXES: MappingProxyType[str, tuple[Axis, ...]] = MappingProxyType(
    {
        "rms_norm": (_tokens("x", step=128, split=True),),
        "rope": (_tokens("q", "k", "cos", "sin", step=128, split=True),),
        "kv_write": (_tokens("k", "v", "slot_mapping", step=128, split=True),),
        "qkv_proj": (_tokens("x"), _COLUMNS),
        "o_proj": (_tokens("x"), _COLUMNS),
        "linear": (_tokens("x"), _COLUMNS),
        "mlp": (_tokens("x"), _INNER),
        "decode_attention": (
            _tokens("q", "block_table", "positions", step=1, split=True),
            _CACHE_HEADS,
        ),
        "prefill_attention": (_tokens("q", "k", "v", "valid", degree=2), _HEADS),
    }
)
"""By operator, the outermost loop first; the others are counted in full."""


def count_call(call: KernelCall, machine: Machine) -> Cores:
    """Counts of a full batch of these shapes, one entry for each physical core.

    Large sizes are extrapolated from smaller ones; see :func:`extrapolate`.

    Args:
        call: Operator and shapes.
        machine: Target and cores.

    Raises:
        KernelLimitError: No kernel of ours takes the call; the message says why.
        NkiError: Our kernel breaks a rule on these shapes.
        ConfigError: The real NKI is installed, and its simulator does not count.
    """
    if REAL:
        raise ConfigError("the Neuron SDK's nki does not count; uninstall it to use the simulator")
    kernels = NkiKernels(_nothing(), target=machine.target, lnc=machine.lnc, strict=True)
    cores = _along(call, AXES.get(call.operator, ()), kernels, machine.lnc)
    # Past the memory of a core nothing repeats: let the simulator say what happens.
    return cores if _fits(cores, machine.target) else _run(call, kernels)


def _nothing() -> Kernels:
    """The fallback of kernels that have none: whatever it is asked is a bug."""
    members: dict[str, Any] = dict.fromkeys(operator_names())
    nothing: Kernels = type("Nothing", (Kernels,), {**members, "name": "nothing"})()
    return nothing


def _along(call: KernelCall, axes: tuple[Axis, ...], kernels: Kernels, lnc: int) -> Cores:
    if not axes:
        return _run(call, kernels)
    axis, *rest = axes
    present = [(name, dim) for name, dim in axis.dims if isinstance(call[name], Shape)]
    base = call[present[0][0]].sizes[present[0][1]]
    step = axis.step * lnc if axis.split else axis.step

    def at(size: int) -> Cores:
        sizes = {(name, dim): call[name].sizes[dim] * size // base for name, dim in present}
        return _along(call.resized(sizes), tuple(rest), kernels, lnc)

    return extrapolate(at, base, step, axis.degree)


def _fits(cores: Cores, target: str) -> bool:
    limits = TARGETS[target]
    return all(
        core.sbuf_peak <= limits.sbuf_bytes and core.psum_peak <= limits.psum_bytes
        for core in cores
    )


def _run(call: KernelCall, kernels: Kernels) -> Cores:
    with launches() as heard:
        invoke(kernels, call.operator, call.tensors())
    (launch,) = heard  # every operator is one kernel
    return tuple(CoreCost.of(core) for core in launch.cores)
