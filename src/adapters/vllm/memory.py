# SPDX-License-Identifier: Apache-2.0
"""How much memory the KV cache gets."""

from __future__ import annotations

import attrs

from trnport.core.errors import CapacityError

CACHE_SHARE = 0.30
"""Part of a worker's memory that the cache may take unless it is sized explicitly.

The host is shared with the page cache, the server and whatever else runs there, so the rest
is left alone. A chip's memory is sized the same way by the vendor's plugin.
"""


@attrs.frozen
class HostMemory:
    """Memory of the machine, in bytes, as far as this process may use it."""

    total: int
    available: int


def host_memory() -> HostMemory:
    """Read the machine's memory; a container's limit counts as the machine's."""
    import psutil
    from vllm.utils.cpu_resource_utils import get_cgroup_memory_limit, get_cgroup_memory_usage

    memory = psutil.virtual_memory()
    limit, usage = get_cgroup_memory_limit(), get_cgroup_memory_usage()
    if limit is None or limit >= memory.total:
        return HostMemory(memory.total, memory.available)
    return HostMemory(limit, max(0, min(memory.available, limit - (usage or 0))))


def kv_cache_bytes(
    host: HostMemory,
    *,
    utilization: float,
    num_workers: int,
    model_bytes: int,
    explicit: int | None = None,
) -> int:
    """Bytes for one worker's KV cache.

    Args:
        host: The machine's memory.
        utilization: ``gpu_memory_utilization``: the part that all workers may use together.
        num_workers: Workers that share the machine, those of all replicas.
        model_bytes: Parameters and buffers of this worker.
        explicit: A size for each worker that the user chose; it wins.

    Raises:
        CapacityError: The size the user chose is not there.
    """
    if explicit is not None:
        _check_explicit(explicit, host.available, num_workers)
        return explicit
    share = int(host.total * utilization) // num_workers
    # Every worker reads the same free memory, and all of them allocate afterwards.
    free = host.available // num_workers
    return max(0, min(share - model_bytes, int(share * CACHE_SHARE), free))


def _check_explicit(explicit: int, available: int, num_workers: int) -> None:
    if explicit * num_workers <= available:
        return
    each = "" if num_workers == 1 else f" for each of {num_workers} workers"
    raise CapacityError(
        f"the KV cache was set to {_gib(explicit)} GiB{each} and {_gib(available)} GiB of memory "
        f"are free; lower kv_cache_memory_bytes or VLLM_CPU_KVCACHE_SPACE to at most "
        f"{_gib(available // num_workers)} GiB"
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f}"
