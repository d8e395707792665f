# SPDX-License-Identifier: Apache-2.0
"""The folder through which the workers' metrics reach the process that serves /metrics.

Workers are other processes than the HTTP server. Each writes its values into files of a
folder, in the format of prometheus_client's multiprocess mode:

- With several HTTP servers vLLM is in that mode itself. Our files then lie among its own, and
  every server shows all of them without further ado.
- With one, vLLM serves the metrics of its own process. The folder is ours alone, and a
  collector in that process adds what is in it.
"""

from __future__ import annotations

import atexit
import fcntl
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from trnport.adapters.vllm.env import (
    inherited_metrics_folder,
    pass_on_metrics_folder,
    prometheus_folder,
)
from trnport.adapters.vllm.log import plugin_logger
from trnport.core.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX = "trnport_prometheus_"
LOCK = "lock"


def prepare_metrics() -> None:
    """Make the server's metrics visible in this process; does nothing the second time.

    Called in every process of a server, first in the one that starts the others.

    Raises:
        ConfigError: PROMETHEUS_MULTIPROC_DIR is set and is no directory.
    """
    given = prometheus_folder()
    if given is None:
        _collect_from(metrics_folder())
    elif not Path(given).is_dir():
        raise ConfigError(
            f"PROMETHEUS_MULTIPROC_DIR={given!r} is not a directory; create it, or unset the "
            "variable to let the server make one"
        )


def metrics_folder() -> Path:
    """Where this process's metrics go."""
    return Path(prometheus_folder() or inherited_metrics_folder() or _own_folder())


class FolderCollector:
    """Reads what all workers have written; the registry of one HTTP server asks it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self) -> Iterator[Metric]:
        """Names, for scrapes that ask for some series only."""
        from prometheus_client import Metric

        from trnport.adapters.vllm.metrics import METRICS

        for metric in METRICS:
            yield Metric(metric.full_name, metric.meaning, metric.kind)

    def collect(self) -> Iterable[Metric]:
        """Everything there is now."""
        from prometheus_client.multiprocess import MultiProcessCollector

        try:
            # A worker that was killed right at its start may leave an empty file.
            files = [str(f) for f in self._folder.glob("*.db") if f.stat().st_size]
            return list(MultiProcessCollector.merge(files))
        except (OSError, ValueError, RuntimeError, struct.error) as error:
            # A worker that ends takes its files along, maybe between the lines above. A
            # scrape without our series is better than none.
            plugin_logger(__name__).debug("metrics of the workers cannot be read: %s", error)
            return []


@cache
def _collect_from(folder: Path) -> None:
    from prometheus_client import REGISTRY

    REGISTRY.register(FolderCollector(folder))


@cache
def _own_folder() -> str:
    """A new folder, removed when this process ends."""
    remove_orphans(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    held = _lock(folder)
    pass_on_metrics_folder(str(folder))
    atexit.register(_remove, folder, held)
    return str(folder)


def remove_orphans(parent: Path) -> None:
    """Remove the folders of processes that were killed before they could.

    A living owner holds a lock, which ends with the process however it ends.
    """
    for file in parent.glob(f"{PREFIX}*/{LOCK}"):
        try:
            with file.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(file.parent, ignore_errors=True)
        except OSError:
            continue  # alive, somebody else's, or just removed


def _lock(folder: Path) -> TextIO:
    """Take the owner's lock, before others can see that there is one."""
    hidden = folder / f"{LOCK}.new"
    lock = hidden.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    hidden.rename(folder / LOCK)
    return lock


def _remove(folder: Path, held: TextIO) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    held.close()
