# SPDX-License-Identifier: Apache-2.0
"""What this machine has: cores, memory, Neuron devices."""

from __future__ import annotations

import os
from pathlib import Path

import attrs

_CGROUP_FILES = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
    (
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)
"""Limit and usage of a container's memory, in version 2 and version 1 of control groups."""


@attrs.frozen
class Machine:
    """The machine as far as this process may use it.

    Attributes:
        cores: CPU cores.
        memory_bytes: Memory; a container's limit counts as the machine's.
        free_bytes: Memory that is free, or could be freed at once.
        neuron_devices: Device nodes of the Neuron driver.
    """

    cores: int
    memory_bytes: int
    free_bytes: int
    neuron_devices: tuple[str, ...]


def inspect_machine(root: Path = Path("/")) -> Machine:
    """Look at a Linux machine.

    Args:
        root: Where its proc, sys and dev are.
    """
    total, free = _memory(root)
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=total,
        free_bytes=free,
        neuron_devices=tuple(sorted(f"/dev/{node.name}" for node in root.glob("dev/neuron*"))),
    )


def _memory(root: Path) -> tuple[int, int]:
    lines = (root / "proc/meminfo").read_text().splitlines()
    kib = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines)}
    total, free = int(kib["MemTotal"]) * 1024, int(kib["MemAvailable"]) * 1024
    for limit_file, usage_file in _CGROUP_FILES:
        limit = _number(root / limit_file)
        if limit is not None and limit < total:
            return limit, max(0, min(free, limit - (_number(root / usage_file) or 0)))
    return total, free


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # absent, or the word "max"
        return None
