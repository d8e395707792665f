# SPDX-License-Identifier: Apache-2.0
"""What on this machine decides how a program is compiled.

Importing it imports no torch, so that ``trnport doctor`` and vLLM's plugin can ask quickly.
"""

from __future__ import annotations

import functools
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

from trnport.core.errors import ConfigError


def require_toolchain(setting: str = "compiler='inductor'") -> str:
    """Find the C++ compiler.

    Args:
        setting: What needs it, for the message.

    Returns:
        Its path.

    Raises:
        ConfigError: There is none.
    """
    path = cxx()
    if path is None:
        raise ConfigError(
            f"neuron_config.{setting} needs a C++ compiler, and there is none: install g++ "
            "(Debian, Ubuntu: apt-get install g++), set CXX, or use compiler='eager' and "
            "kernels='torch_cpu'"
        )
    return path


def cxx() -> str | None:
    """Path of the C++ compiler, or None: the first of CXX, g++ and clang++ that exists."""
    given = shlex.split(os.environ.get("CXX", ""))[:1]
    found = (shutil.which(name) for name in (*given, "g++", "clang++"))
    return next((path for path in found if path), None)


@functools.cache
def target() -> str:
    """Compilers and instruction set, as one text: part of a program's key."""
    import torch

    parts = (
        f"torch {torch.__version__} {torch.version.git_version}",
        f"{_compiler_version()}",
        f"{platform.system()} {platform.machine()}",
        f"{torch.backends.cpu.get_cpu_capability()}",
        _cpu_flags(),
    )
    return "\n".join(parts)


def _compiler_version() -> str:
    path = cxx()
    if path is None:
        return "no C++ compiler"
    answer = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    return (answer.stdout or answer.stderr).partition("\n")[0]


def _cpu_flags() -> str:
    """What the processor can do; inductor compiles for exactly this one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("flags", "features", "model name", "cpu part")
    shown = {line for line in lines if line.lower().split("\t")[0].split(":")[0].strip() in wanted}
    return "\n".join(sorted(shown))
