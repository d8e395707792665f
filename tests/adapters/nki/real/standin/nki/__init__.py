# SPDX-License-Identifier: Apache-2.0
"""Our simulator under the names of the real `nki`, so that the differential harness itself runs.

A test puts this folder on the path of a process of its own. As in the real one, target and mode
come from the environment and the number of cores from `kernel[lnc]`. NKI_STANDIN_FAULT makes every
result wrong, to show that the comparison can fail.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from trnport.adapters.nki import simulator
from trnport.adapters.nki.simulator import isa, language
from trnport.adapters.nki.simulator import jit as jit

sys.modules["nki.isa"], sys.modules["nki.language"] = isa, language


def simulate(kernel: Any) -> Callable[..., Any]:
    """Return a callable that runs a kernel."""
    simulation = simulator.simulate(
        kernel,
        target=os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"],
        precise=os.environ["NKI_PRECISE_FP"] == "0",
    )

    def call(*args: Any, **kwargs: Any) -> Any:
        result = simulation(*args, **kwargs)
        if "NKI_STANDIN_FAULT" not in os.environ or result is None:
            return result
        results = result if isinstance(result, tuple) else (result,)
        return tuple(x.double() + 1 for x in results)

    return call
