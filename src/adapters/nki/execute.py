# SPDX-License-Identifier: Apache-2.0
"""Run a kernel on torch tensors: in a simulator when they are on the CPU, else on their device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import attrs
from torch import Tensor

from trnport.adapters.nki.counting import note
from trnport.adapters.nki.nki import REAL, nki
from trnport.core.errors import ConfigError

TARGETS = ("trn2", "trn3")
LNCS = (1, 2)


@attrs.frozen
class Machine:
    """What a kernel is compiled for, or simulated as.

    Attributes:
        target: "trn2" or "trn3".
        lnc: Physical cores of a logical one, 1 or 2.
        precise: Simulate floats as fp32, to tell errors of logic from rounding.

    Raises:
        ConfigError: There is no such target or number of cores.
    """

    target: str = "trn2"
    lnc: int = 1
    precise: bool = False

    def __attrs_post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ConfigError(f"target={self.target!r} is unknown; choose one of {TARGETS}")
        if self.lnc not in LNCS:
            raise ConfigError(f"lnc={self.lnc!r} must be one of {LNCS}")

    @property
    def key(self) -> str:
        """A string for a graph node's argument, such as "trn2/2/rounding"."""
        return f"{self.target}/{self.lnc}/{'precise' if self.precise else 'rounding'}"

    @classmethod
    def parse(cls, key: str) -> Self:
        """The inverse of :attr:`key`."""
        target, lnc, mode = key.split("/")
        return cls(target, int(lnc), mode == "precise")


def run(kernel: Callable[..., Any], machine: str, *args: Any) -> Any:
    """Run a kernel.

    Args:
        kernel: A plain function; what it writes into a tensor is seen by the caller.
        machine: A :attr:`Machine.key`.
        args: Its arguments: contiguous tensors and constants.

    Returns:
        What the kernel returns: a tensor or a tuple of them.

    Raises:
        RuntimeError: The tensors are on a device, and the Neuron SDK's nki is not installed.
    """
    where = Machine.parse(machine)
    on_cpu = all(x.device.type == "cpu" for x in args if isinstance(x, Tensor))
    if not REAL:
        if not on_cpu:
            raise RuntimeError(
                "tensors are on a device, and the nki of the Neuron SDK is not installed; "
                "install it, or keep the tensors on the CPU to simulate"
            )
        simulation = nki.simulate(kernel, target=where.target, lnc=where.lnc, precise=where.precise)
        results = simulation(*args)
        note(kernel.__name__, simulation.counters)
        return results
    # Not yet run on hardware. The number of cores belongs to the call: a framework's wrapper
    # around kernel[lnc] would lose it. The SDK's own simulator takes its target and its mode
    # from the environment.
    compiled = nki.jit(kernel)[where.lnc]
    return nki.simulate(compiled)(*args) if on_cpu else compiled(*args)
