# SPDX-License-Identifier: Apache-2.0
"""Bars of the medians, one picture for each metric that several engines share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.compare.ratios import Line
from benchmarks.compare.workloads import METRICS

WIDTH = 0.8


def draw(
    lines: Sequence[Line], titles: Mapping[str, str], workloads: Mapping[str, str], folder: Path
) -> list[Path]:
    """Draw PNG files; needs matplotlib, the extra ``plot``.

    Args:
        lines: The table.
        titles: Titles of the engines by name, in the order of the bars.
        workloads: Titles of the workloads by name.
        folder: Where the files go; made where missing.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for metric in dict.fromkeys(line.metric for line in lines if len(line.cells) > 1):
        chosen = [line for line in lines if line.metric == metric]
        engines = [name for name in titles if any(name in line.cells for line in chosen)]
        figure, axes = plt.subplots(figsize=(2.0 + 2.2 * len(chosen), 3.6))
        thickness = WIDTH / len(engines)
        for place, name in enumerate(engines):
            shift = (place - (len(engines) - 1) / 2) * thickness
            have = [(at + shift, line.cells[name].median) for at, line in enumerate(chosen)
                    if name in line.cells]  # fmt: skip
            bars = axes.bar(*zip(*have, strict=True), thickness, label=titles[name])
            axes.bar_label(bars, fmt="%.3g", fontsize=7)
        axes.set_xticks(range(len(chosen)), [workloads.get(x.workload, x.workload) for x in chosen])
        axes.set_ylabel(METRICS[metric].unit)
        direction = "more" if METRICS[metric].more_is_better else "less"
        axes.set_title(f"{METRICS[metric].title} ({direction} is better)", fontsize=10)
        axes.legend(fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        file = folder / f"{metric}.png"
        figure.savefig(file, dpi=110, bbox_inches="tight", metadata={"Software": None})
        plt.close(figure)
        drawn.append(file)
    return drawn
