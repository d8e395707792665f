# SPDX-License-Identifier: Apache-2.0
"""A world whose ranks are processes on gloo."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SECONDS = 60


class GlooWorld:
    """Ranks that are processes, started once and given one function after another.

    Args:
        size: Number of ranks.
        seconds: How long to wait for a rank before calling it hung.
    """

    def __init__(self, size: int, seconds: float = SECONDS) -> None:
        self.size = size
        self._seconds = seconds
        context = multiprocessing.get_context("spawn")
        rendezvous = Path(tempfile.mkdtemp()) / "rendezvous"
        self._pipes: list[Connection] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, size, str(rendezvous), seconds), daemon=True
            )
            process.start()
            self._pipes.append(ours)

    def run(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call the function on every rank; the first rank's exception is raised here."""
        for pipe in self._pipes:
            pipe.send(function)
        results = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(self._seconds):
                raise TimeoutError(f"rank {rank} of {self.size} did not answer")
            results.append(pipe.recv())
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def _serve(pipe: Connection, rank: int, size: int, rendezvous: str, seconds: float) -> None:
    import torch
    import torch.distributed as dist

    from trnport.adapters.distributed import DistributedCollectives

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{rendezvous}", timedelta(seconds=seconds), world_size=size, rank=rank
    )
    collectives = DistributedCollectives({"tp": dist.group.WORLD})
    while True:
        try:
            function = pipe.recv()
        except EOFError:  # the tests are over
            return
        try:
            pipe.send(function(collectives))
        except BaseException as error:  # noqa: BLE001 - it travels to the caller
            pipe.send(error)
