# SPDX-License-Identifier: Apache-2.0
"""The environment variables this adapter reads or sets; nowhere else does it touch them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs

from trnport.core.errors import ConfigError

DEVICES = ("cpu", "neuron")
"""Values of TRNPORT_DEVICE."""


@attrs.frozen
class Environment:
    """Settings from the environment.

    Attributes:
        device: TRNPORT_DEVICE, the device asked for; None leaves the choice to trnport.
        kv_cache_gib: VLLM_CPU_KVCACHE_SPACE, GiB of KV cache on the host; None or 0 when
            unset. The name is vLLM's own for its CPU backend.
    """

    device: str | None = None
    kv_cache_gib: int | None = None


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read and check the environment.

    Args:
        variables: Where to look; the process's environment when None.

    Raises:
        ConfigError: A variable has a value it cannot have.
    """
    source = os.environ if variables is None else variables
    return Environment(
        device=_device(source.get("TRNPORT_DEVICE", "")),
        kv_cache_gib=_gibibytes("VLLM_CPU_KVCACHE_SPACE", source),
    )


def set_defaults(ranks: int = 1) -> None:
    """Choose for vLLM what the user has not, here and in the processes it starts.

    Args:
        ranks: Worker processes that will share this machine's cores.

    Spawn, because a forked child of a process that has run PyTorch in parallel can hang in
    OpenMP. The first of vLLM's two worker protocols, because the second assumes Triton, and
    vLLM would warn about its absence.
    """
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    # vLLM's own CPU backend pins each rank to a NUMA node and refuses more ranks than nodes.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    if ranks > 1:
        # Otherwise each rank starts a thread for every core, and they wait for each other.
        threads = max(1, len(os.sched_getaffinity(0)) // ranks)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))


def _device(value: str) -> str | None:
    if not value:
        return None
    if value not in DEVICES:
        raise ConfigError(
            f"TRNPORT_DEVICE={value!r} is not a device; choose one of {', '.join(DEVICES)}, or "
            "unset it to let trnport decide"
        )
    return value


def _gibibytes(name: str, source: Mapping[str, str]) -> int | None:
    value = source.get(name, "")
    if not value:
        return None
    if not value.isascii() or not value.isdecimal():
        raise ConfigError(f"{name}={value!r} must be a whole number of GiB")
    return int(value) or None
