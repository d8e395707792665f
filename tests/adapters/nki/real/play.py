# SPDX-License-Identifier: Apache-2.0
"""Run every program in this process and write what came out.

    python -m tests.adapters.nki.real.play found OUT.json       the `nki` that is installed
    python -m tests.adapters.nki.real.play embedded OUT.json    our simulator

NEURON_PLATFORM_TARGET_OVERRIDE names the target, NKI_PRECISE_FP the mode (0: floats held as fp32).
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any


def environment() -> tuple[str, bool]:
    """Return the target and whether floats are held as fp32."""
    return os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"], os.environ["NKI_PRECISE_FP"] == "0"


def numbers(value: Any) -> dict[str, Any]:
    """Shape, and elements as Python numbers, of a torch or numpy array."""
    import torch

    array = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    wide = array.to(torch.float64) if array.is_floating_point() else array.to(torch.int64)
    return {"shape": list(array.shape), "values": [str(x) for x in wide.reshape(-1).tolist()]}


def outcome(program: Any, machine: str) -> dict[str, Any]:
    """Results of a program and its arguments afterwards, or what it raised."""
    import torch

    from trnport.adapters.nki.execute import run

    arguments = program.arguments()
    arguments = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in arguments)
    try:
        with warnings.catch_warnings():
            # The real simulator warns of sums in PSUM that the hardware would not make.
            warnings.simplefilter("error", UserWarning)
            result = run(program.kernel, machine, *arguments)
    except Exception as error:  # noqa: BLE001 - compared
        return {"raised": f"{type(error).__name__}: {error}"}
    results = result if isinstance(result, tuple | list) else (result,)
    changed = [x for x in arguments if isinstance(x, torch.Tensor)]
    return {
        "results": [numbers(x) for x in results if x is not None],
        "arguments": [numbers(x) for x in changed],
    }


def main(side: str, place: str) -> None:
    """Write one JSON object: outcome per program and number of cores."""
    if side == "embedded":
        sys.modules["nki"] = None  # type: ignore[assignment] # importing it raises ImportError
    import torch

    from tests.adapters.nki.real.table import programs
    from trnport.adapters.nki.execute import Machine
    from trnport.adapters.nki.nki import REAL

    if (side == "found") != REAL:
        raise SystemExit(f"asked for the {side} simulator, but REAL is {REAL}")
    torch.set_num_threads(1)
    target, precise = environment()
    found = {
        f"{name}, lnc {lnc}": outcome(program, Machine(target, lnc, precise).key)
        for name, program in programs().items()
        if target in program.targets
        for lnc in program.lnc
    }
    Path(place).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
