# SPDX-License-Identifier: Apache-2.0
"""The environment variables this adapter reads or sets; nowhere else does it touch them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping

import attrs

from trnport.core.errors import ConfigError

DEVICES = ("cpu", "neuron")
"""Values of TRNPORT_DEVICE."""

LOG_FORMATS = ("text", "json")
"""Values of TRNPORT_LOG_FORMAT, the default first."""

METRICS_FOLDER = "TRNPORT_METRICS_DIR"
"""Set by the first process of a server for those that it starts."""


@attrs.frozen
class Environment:
    """Settings from the environment.

    Attributes:
        device: TRNPORT_DEVICE, the device asked for; None leaves the choice to trnport.
        kv_cache_gib: VLLM_CPU_KVCACHE_SPACE, GiB of KV cache on the host; None or 0 when
            unset. The name is vLLM's own for its CPU backend.
        log_format: TRNPORT_LOG_FORMAT, how our log lines look.
    """

    device: str | None = None
    kv_cache_gib: int | None = None
    log_format: str = LOG_FORMATS[0]


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
        log_format=_log_format(source.get("TRNPORT_LOG_FORMAT", "")),
    )


def prometheus_folder() -> str | None:
    """PROMETHEUS_MULTIPROC_DIR: where vLLM's HTTP servers look for metrics of all processes.

    vLLM sets it for several HTTP servers, a user may for one.
    """
    return os.environ.get("PROMETHEUS_MULTIPROC_DIR") or None


def inherited_metrics_folder() -> str | None:
    """The metrics folder of the process that started this one as a part of its server.

    A server that a script starts with ``subprocess`` inherits the variable too, and must not
    write into the script's folder: only children made by ``multiprocessing`` count.
    """
    if multiprocessing.parent_process() is None:
        return None
    return os.environ.get(METRICS_FOLDER) or None


def pass_on_metrics_folder(folder: str) -> None:
    """Tell the processes that this one starts about its metrics folder."""
    os.environ[METRICS_FOLDER] = folder


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


def _log_format(value: str) -> str:
    if value and value not in LOG_FORMATS:
        raise ConfigError(
            f"TRNPORT_LOG_FORMAT={value!r} is not a format; choose one of {', '.join(LOG_FORMATS)}"
        )
    return value or LOG_FORMATS[0]


def _gibibytes(name: str, source: Mapping[str, str]) -> int | None:
    value = source.get(name, "")
    if not value:
        return None
    if not value.isascii() or not value.isdecimal():
        raise ConfigError(f"{name}={value!r} must be a whole number of GiB")
    return int(value) or None
