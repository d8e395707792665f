# SPDX-License-Identifier: Apache-2.0
"""The roofline as a PNG. matplotlib is optional and imported here only."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trnport.core.errors import ConfigError

_COLORS = {
    "tensor": "#1f77b4",
    "vector": "#d62728",
    "scalar": "#9467bd",
    "gpsimd": "#8c564b",
    "hbm": "#2ca02c",
    "dma": "#ff7f0e",
}


def load_plotter() -> Callable[[Any, str, Path], None]:
    """The function that draws.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--plot needs {error.name}; install the extra: pip install 'trnport[plot]'"
        ) from error

    def draw(estimate: Any, title: str, file: Path) -> None:
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        roof, bars = figure.subplots(1, 2)
        _draw_roof(roof, estimate)
        _draw_bars(bars, estimate)
        machine = estimate.machine
        figure.suptitle(
            f"{title}: {estimate.program} on {machine.target}, "
            f"lnc {machine.lnc}\nESTIMATE, not yet run on hardware",
            fontsize=10,
        )
        try:
            figure.savefig(file, format="png", dpi=90)
        except OSError as error:
            raise ConfigError(f"--plot {file} cannot be written: {error}") from error

    return draw


def _draw_roof(axes: Any, estimate: Any) -> None:
    peak, ridge = estimate.peak_flops, estimate.ridge
    left, right = 0.5, 4096.0
    axes.loglog([left, ridge, right], [peak * left / ridge, peak, peak], color="black", lw=1)
    where: dict[tuple[int, int], tuple[float, float]] = {}
    clusters: dict[tuple[int, int], list[str]] = {}
    for call in estimate.calls:
        if not call.macs or not call.bound.seconds:
            continue
        reached = 2 * call.macs / call.bound.seconds
        axes.plot(call.intensity, reached, "o", color=_COLORS[call.bound.by])
        place = (round(math.log2(call.intensity)), round(math.log2(reached)))
        names = clusters.setdefault(place, [])
        if not names:  # one label for all points that would print over each other
            where[place] = (call.intensity, reached)
        if call.call.operator not in names:
            names.append(call.call.operator)
    for place, names in clusters.items():
        offset = {"xytext": (6, -9), "textcoords": "offset points", "va": "top"}
        axes.annotate("\n".join(names), where[place], fontsize=7, **offset)
    axes.set_ylim(bottom=axes.get_ylim()[0] / 4)
    axes.set_xlabel("FLOP per byte of HBM")
    axes.set_ylabel("FLOP/s at best")
    axes.grid(visible=True, which="major", lw=0.3)


def _draw_bars(axes: Any, estimate: Any) -> None:
    calls = sorted(estimate.calls, key=lambda call: call.step_seconds)
    names = [f"{call.call.operator} x{call.times}" for call in calls]
    # Two shapes of one operator are two bars, so bars stand at numbers and carry names.
    axes.barh(
        range(len(calls)),
        [call.step_seconds * 1e6 for call in calls],
        color=[_COLORS.get(call.bound.by, "grey") for call in calls],
    )
    axes.set_yticks(range(len(calls)), names, fontsize=7)
    axes.set_xlabel("least microseconds in a step")
    used = [name for name in _COLORS if any(call.bound.by == name for call in calls)]
    for name in used:
        axes.plot([], [], "s", color=_COLORS[name], label=f"bound by {name}")
    if used:
        axes.legend(fontsize=7, loc="lower right")
