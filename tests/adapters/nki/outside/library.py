# SPDX-License-Identifier: Apache-2.0
"""What a case needs: the library's modules, the simulator, and seeded inputs."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tests.adapters.nki.outside import alias
from tests.adapters.nki.outside.table import Run
from trnport.adapters.nki.simulator import simulate

Pairs = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""By output: what the simulator and the reference gave."""


class Library:
    """A checkout of the kernel library, and one run of its kernels.

    Attributes:
        run: Machine of this run.
        waived: Rules that the kernel broke in a run that is not strict.
    """

    def __init__(self, root: Path, run: Run) -> None:
        self.root = root
        self.run = run
        self.waived: set[str] = set()
        self.generator = np.random.default_rng(zlib.crc32(run.case.variant.encode()))

    @property
    def lnc(self) -> int:
        """Cores."""
        return self.run.lnc

    def module(self, name: str) -> Any:
        """Import a module of the library, such as "core.cumsum.cumsum"."""
        return alias.kernel_module(self.root, name)

    def simulate(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a kernel as the case says."""
        simulation = simulate(
            kernel,
            target=self.run.target,
            lnc=self.run.lnc,
            strict=not self.run.waived,
            precise=self.run.precise,
        )
        result = simulation(*args, **kwargs)
        for counters in simulation.counters:
            self.waived |= counters.waived.keys()
        return result

    def normal(self, *shape: int, dtype: str = "bfloat16", scale: float = 1.0) -> torch.Tensor:
        """Normal numbers of a shape, rounded to a dtype."""
        values = self.generator.standard_normal(shape) * scale
        return torch.from_numpy(values.astype(np.float32)).to(getattr(torch, dtype))

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Uniform int32 numbers from `low` below `high`."""
        return torch.from_numpy(self.generator.integers(low, high, shape).astype(np.int32))

    def normal_fp8(self, *shape: int) -> tuple[Any, torch.Tensor]:
        """Normal numbers in trn2's fp8 as numpy, which has that type, and in fp32 as torch."""
        values = self.generator.standard_normal(shape).astype(np.float32)
        narrow = values.astype(ml_dtypes.float8_e4m3)
        return narrow, torch.from_numpy(narrow.astype(np.float32))


def as_numpy(x: torch.Tensor) -> Any:
    """A bf16 tensor as a numpy array of the same dtype."""
    return x.float().numpy().astype(ml_dtypes.bfloat16)


def as_torch(x: Any) -> torch.Tensor:
    """A float array of any dtype in fp32."""
    return torch.from_numpy(x.astype(np.float32))
