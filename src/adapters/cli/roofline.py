# SPDX-License-Identifier: Apache-2.0
"""``trnport roofline``: least time of a model's step on our NKI kernels, an estimate."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from trnport import bootstrap
from trnport.adapters.cli import estimates
from trnport.adapters.cli.text import bullets, section
from trnport.core.errors import ConfigError
from trnport.core.kernel_calls import KernelCall, Shape

LABEL = "ESTIMATE from counts of a simulator, not yet run on hardware"

CAVEATS = (
    "a bound is the longest of HBM, DMA and each engine; overlap and latency can only add to it",
    "HBM and DMA are taken at full speed; runs below 2048 bytes are slower on hardware",
    "embedding, residual additions, sampling and communication between ranks are not counted",
)


def run_roofline(arguments: argparse.Namespace) -> int:
    """Print the estimate, and draw it where asked.

    Returns:
        0, or 1 when no kernel of ours takes one of the calls.
    """
    for name in ("tp", "batch", "context", "block_size"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"{name}={getattr(arguments, name)} must be a positive integer")
    draw = None
    if arguments.plot:
        from trnport.adapters.cli.roofline_plot import load_plotter

        draw = load_plotter()  # before minutes are spent
    given = Path(arguments.model)
    folder = given.parent if given.name == "config.json" else given
    estimate = estimates.estimate_step(
        folder,
        phase=arguments.phase,
        batch=arguments.batch,
        context=arguments.context,
        tp=arguments.tp,
        dtype=bootstrap.SUPPORTED_DTYPES[arguments.dtype],
        block_size=arguments.block_size,
        target=arguments.target,
        lnc=arguments.lnc,
        progress=_tell if sys.stderr.isatty() else None,
    )
    title = f"{folder.resolve().name}, rank 0 of {arguments.tp}, {arguments.dtype}"
    print(as_json(estimate, title) if arguments.json else render(estimate, title))
    if draw:
        draw(estimate, title, Path(arguments.plot))
        print(f"drawn: {arguments.plot}", file=sys.stderr)
    return 1 if any(call.problem for call in estimate.calls) else 0


def _tell(what: str) -> None:
    print(f"counting {what}", file=sys.stderr)


def render(estimate: Any, title: str) -> str:
    """The estimate as text."""
    machine = estimate.machine
    tokens = f"{estimate.program} on {machine.target}, {machine.lnc} core(s) of {title}"
    lines = [
        LABEL,
        tokens,
        "",
        *section("Time of a step, kernels one after another", _times(estimate)),
        *section("Counts of one call on its busiest core", _counts(estimate)),
        *section("Engine cycles of one call on its busiest core", _cycles(estimate)),
        *section("Step", _totals(estimate)),
        *bullets("No kernel of ours takes", [f"{c.problem}" for c in estimate.calls if c.problem]),
        *bullets("Read this as", CAVEATS),
    ]
    return "\n".join(lines).rstrip()


def as_json(estimate: Any, title: str) -> str:
    """The estimate as one JSON object, times in seconds."""
    calls = [
        {
            "operator": call.call.operator,
            "arguments": {name: _plain(value) for name, value in call.call.arguments},
            "times": call.times,
            "problem": call.problem,
            "bound_seconds": call.bound.seconds,
            "bound_by": call.bound.by,
            "hbm_bytes": call.hbm_bytes,
            "least_bytes": call.least_bytes,
            "macs": call.macs,
            "least_macs": call.least_macs,
            "flop_per_byte": call.intensity,
            "cores": [attrs.asdict(core) for core in call.cores],
        }
        for call in estimate.calls
    ]
    return json.dumps(
        {
            "label": LABEL,
            "model": title,
            "program": estimate.program,
            "target": estimate.machine.target,
            "lnc": estimate.machine.lnc,
            "ridge_flop_per_byte": estimate.ridge,
            "step_seconds": estimate.seconds,
            "hbm_bytes": estimate.hbm_bytes,
            "least_bytes": estimate.least_bytes,
            "least_seconds": estimate.least_seconds,
            "calls": calls,
        },
        indent=2,
    )


def shapes_of(call: KernelCall) -> str:
    """The two tensors that tell most about a call, such as "8x576, 576x320"."""
    names = [name for name in ("weight", "gate_weight", "block_table", "k") if name in call.shapes]
    first = next(iter(call.shapes))
    wanted = list(dict.fromkeys([first, *names[:1]]))
    return ", ".join(f"{name} {call.shapes[name]}" for name in wanted)


def _times(estimate: Any) -> Iterator[tuple[str, ...]]:
    yield "operator", "shapes", "calls", "us each", "bound by", "us in all", "part"
    for call in estimate.calls:
        part = call.step_seconds / estimate.seconds if estimate.seconds else 0.0
        yield (
            call.call.operator,
            shapes_of(call.call),
            str(call.times),
            _us(call.bound.seconds),
            call.bound.by or "not counted",
            _us(call.step_seconds),
            f"{part:.1%}",
        )


def _counts(estimate: Any) -> Iterator[tuple[str, ...]]:
    yield (
        *("operator", "HBM in", "HBM out", "least", "runs", "shortest"),
        *("MACs", "array use", "SBUF/part.", "PSUM/part.", "FLOP/B"),
    )
    for call in (call for call in estimate.calls if call.cores):
        core = max(call.cores, key=lambda core: core.hbm_bytes)
        used = f"{core.macs / core.array_macs:.1%}" if core.array_macs else "-"
        yield (
            call.call.operator,
            str(sum(n for pair, n in core.moved.items() if pair.startswith("hbm"))),
            str(sum(n for pair, n in core.moved.items() if pair.endswith("hbm"))),
            str(-(-call.least_bytes // len(call.cores))),
            str(core.descriptors),
            str(core.shortest_run),
            str(core.macs),
            used,
            str(core.sbuf_peak),
            str(core.psum_peak),
            f"{call.intensity:.1f}",
        )


def _cycles(estimate: Any) -> Iterator[tuple[str, ...]]:
    engines = ("tensor", "vector", "scalar", "gpsimd")
    yield ("operator", *engines, "instructions")
    for call in (call for call in estimate.calls if call.cores):
        core = max(call.cores, key=lambda core: sum(core.cycles.values()))
        cycles = (f"{core.cycles.get(engine, 0):.0f}" for engine in engines)
        yield (call.call.operator, *cycles, str(sum(core.instructions.values())))


def _totals(estimate: Any) -> Iterator[tuple[str, str]]:
    yield "least time of our kernels", f"{estimate.seconds * 1e3:.3f} ms"
    yield "least time of any kernels", f"{estimate.least_seconds * 1e3:.3f} ms"
    yield "bytes of our kernels", str(estimate.hbm_bytes)
    yield "bytes of any kernels", str(estimate.least_bytes)
    yield "ridge", f"{estimate.ridge:.0f} FLOP/B"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


def _plain(value: Any) -> Any:
    return f"{value} {value.dtype}" if isinstance(value, Shape) else value
