# SPDX-License-Identifier: Apache-2.0
"""How fast this machine reads memory: the limit of decoding one request.

Asked like an engine, it answers with the time of one pass over ``bytes`` of memory as ``end``.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.compare.runners.protocol import Trace, serve

PASSES = 5


class Memory:
    """A block far larger than the caches."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(options["threads"])
        self._bytes = options["bytes"]
        self._block = torch.ones(self._bytes // 4, dtype=torch.float32)
        self.about = {"torch": torch.__version__}

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Trace:
        seconds = []
        for _ in range(PASSES):
            started = time.perf_counter()
            self._block.sum().item()
            seconds.append(time.perf_counter() - started)
        best = min(seconds)
        return {"first": best, "tokens_at_first": 0, "end": best, "tokens": self._bytes}


if __name__ == "__main__":
    serve(Memory)
