# SPDX-License-Identifier: Apache-2.0
"""Run the table in this process and print one JSON object per run.

python -m tests.adapters.nki.outside.run CHECKOUT [PART OF A NAME ...]
python -m tests.adapters.nki.outside.run CHECKOUT --table    a Markdown table at the end
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from tests.adapters.nki.outside import alias, table
from tests.adapters.nki.outside.library import Library, Pairs
from tests.adapters.nki.outside.report import markdown


def package_below(checkout: Path) -> Path:
    """Return the directory of the package `nkilib` in a checkout.

    Raises:
        FileNotFoundError: There is none.
    """
    for place in (checkout / "src/nkilib_src/nkilib", checkout / "nkilib", checkout):
        if (place / "core").is_dir():
            return place
    raise FileNotFoundError(f"{checkout} holds no nkilib package; it must be a checkout")


def error_of(pairs: Pairs) -> float:
    """Return the largest max|got - want| / max|want| over the outputs."""
    worst = 0.0
    for name, (got, want) in pairs.items():
        if tuple(got.shape) != tuple(want.shape):
            raise AssertionError(f"{name} has shape {tuple(got.shape)}, not {tuple(want.shape)}")
        difference = (got.double() - want.double()).abs().max().item()
        if math.isnan(difference):
            raise AssertionError(f"{name} holds NaN")
        worst = max(worst, difference / want.double().abs().max().item())
    return worst


def outcome(root: Path, run: table.Run) -> dict[str, Any]:
    """Run one row; errors become part of the result."""
    module, function = run.case.build.split(":")
    begin = time.perf_counter()
    result: dict[str, Any] = {"name": run.name, "error": None, "failure": None, "rule": None}
    library = Library(root, run)
    try:
        build = getattr(importlib.import_module(f"tests.adapters.nki.outside.{module}"), function)
        with contextlib.redirect_stdout(sys.stderr):  # some kernels print
            result["error"] = error_of(build(library, **run.case.options))
    except Exception as error:  # noqa: BLE001 - reported in the table
        result["failure"] = f"{type(error).__name__}: {error}"
        result["rule"] = getattr(error, "rule", None)
        traceback.print_exc(file=sys.stderr)
    result["waived"] = sorted(library.waived)
    result["seconds"] = time.perf_counter() - begin
    return result


def main(arguments: list[str]) -> None:
    """Run what the arguments name."""
    root = package_below(Path(arguments[0]))
    parts = [part for part in arguments[1:] if not part.startswith("--")]
    torch.set_num_threads(1)
    alias.install()
    results = []
    for run in table.RUNS:
        if not parts or any(part in run.name for part in parts):
            results.append(outcome(root, run))
            print(json.dumps(results[-1]), flush=True)
    if "--table" in arguments:
        print(markdown(results))


if __name__ == "__main__":
    main(sys.argv[1:])
