# SPDX-License-Identifier: Apache-2.0
"""How many workers share this machine."""

from __future__ import annotations

from typing import Any

_REPLICAS = "_trnport_replicas"


def remember_replicas(parallel_config: Any) -> None:
    """Note the number of data-parallel replicas on this machine in the configuration.

    vLLM turns a replica of a model without experts into an engine of its own before it starts
    the workers: there ``data_parallel_size_local`` is 1 however many replicas there are. The
    configuration itself travels to the workers, and the note with it.
    """
    if not hasattr(parallel_config, _REPLICAS):
        setattr(parallel_config, _REPLICAS, max(1, parallel_config.data_parallel_size_local))


def workers_here(parallel_config: Any) -> int:
    """Workers on this machine: the ranks of every replica.

    Args:
        parallel_config: A ``vllm.config.ParallelConfig``.
    """
    replicas: int = getattr(parallel_config, _REPLICAS, 1)
    return replicas * int(parallel_config.local_world_size)
