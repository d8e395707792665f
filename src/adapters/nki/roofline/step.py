# SPDX-License-Identifier: Apache-2.0
"""Sum the calls of one step of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from trnport.adapters.nki.execute import Machine
from trnport.adapters.nki.fallback import KernelLimitError
from trnport.adapters.nki.roofline.cost import PEAK_MACS, Bound, CoreCost, bound, ridge
from trnport.adapters.nki.roofline.count import count_call
from trnport.adapters.nki.roofline.minimum import least_bytes, least_macs
from trnport.adapters.nki.simulator.rules import NkiError
from trnport.adapters.nki.simulator.targets import RATES
from trnport.core.kernel_calls import KernelCall


@attrs.frozen
class CallEstimate:
    """One shape of one operator.

    Attributes:
        call: Operator and shapes.
        times: Calls in a step.
        cores: Counts of one call on each physical core; empty when no kernel takes it.
        problem: Why not.
        bound: Least time of one call.
        least_bytes: What every implementation moves, both cores together.
        least_macs: What every implementation multiplies.
    """

    call: KernelCall
    times: int
    cores: tuple[CoreCost, ...]
    problem: str
    bound: Bound
    least_bytes: int
    least_macs: int

    @property
    def hbm_bytes(self) -> int:
        """Bytes of one call between HBM and all cores."""
        return sum(core.hbm_bytes for core in self.cores)

    @property
    def macs(self) -> int:
        """Multiply-adds of one call's operands on all cores."""
        return sum(core.macs for core in self.cores)

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte of HBM."""
        return 2 * self.macs / self.hbm_bytes if self.hbm_bytes else 0.0

    @property
    def step_seconds(self) -> float:
        """Least time of all calls of a step."""
        return self.times * self.bound.seconds


@attrs.frozen
class StepEstimate:
    """A step of a model on one rank: an estimate from counts, not run on hardware.

    Attributes:
        program: Name of the program.
        machine: Target and cores.
        ridge: Operations per byte where a product turns from memory-bound to compute-bound.
        calls: One entry for each operator and shape, in order of the first call.
    """

    program: str
    machine: Machine
    ridge: float
    calls: tuple[CallEstimate, ...]

    @property
    def seconds(self) -> float:
        """Least time of the step's kernels one after another."""
        return sum(call.step_seconds for call in self.calls)

    @property
    def least_bytes(self) -> int:
        """Bytes that every implementation moves in a step."""
        return sum(call.times * call.least_bytes for call in self.calls)

    @property
    def hbm_bytes(self) -> int:
        """Bytes that our kernels move in a step."""
        return sum(call.times * call.hbm_bytes for call in self.calls)

    @property
    def peak_flops(self) -> float:
        """Floating-point operations per second of the logical core, of 16-bit data."""
        clock = RATES[self.machine.target].clocks["tensor"]
        return 2 * PEAK_MACS * clock * self.machine.lnc

    @property
    def least_seconds(self) -> float:
        """Least time of any kernels with the same operators: bytes and products alone."""
        rates = RATES[self.machine.target]
        bandwidth = min(rates.hbm, rates.dma) * self.machine.lnc
        return sum(
            call.times * max(call.least_bytes / bandwidth, 2 * call.least_macs / self.peak_flops)
            for call in self.calls
        )


def estimate_step(
    program: str,
    calls: Mapping[KernelCall, int],
    *,
    target: str = "trn2",
    lnc: int = 1,
    progress: Callable[[str], None] | None = None,
) -> StepEstimate:
    """Count every call and bound its time.

    Args:
        program: Name of the program.
        calls: What it calls, and how often.
        target: "trn2" or "trn3".
        lnc: Physical cores of a logical one.
        progress: Told what is counted next.
    """
    machine = Machine(target, lnc)
    found = []
    for call, times in calls.items():
        if progress:
            progress(f"{call.operator} {next(iter(call.shapes.values()))}")
        cores, problem = _counted(call, machine)
        found.append(
            CallEstimate(
                call=call,
                times=times,
                cores=cores,
                problem=problem,
                bound=bound(cores, target),
                least_bytes=least_bytes(call),
                least_macs=least_macs(call),
            )
        )
    return StepEstimate(program, machine, ridge(target), tuple(found))


def _counted(call: KernelCall, machine: Machine) -> tuple[tuple[CoreCost, ...], str]:
    """The counts, or none and why."""
    try:
        return count_call(call, machine), ""
    except KernelLimitError as error:
        return (), str(error)
    except NkiError as error:
        return (), f"our kernel for {call.operator} breaks a rule: {error}"
