# SPDX-License-Identifier: Apache-2.0
"""Which files make up a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from trnport.core.errors import CheckpointError

INDEX = "model.safetensors.index.json"


def find_files(path: Path) -> dict[Path, frozenset[str] | None]:
    """The files of a checkpoint, sorted.

    Args:
        path: A safetensors file, or a directory of them. Where the directory has an index,
            the index alone decides: files and tensors that it does not list do not exist.

    Returns:
        File to the tensors the index takes from it; None without an index: all of them.

    Raises:
        CheckpointError: There are no weights, or the index is damaged or names a file that
            is not there.
    """
    if path.is_file():
        if path.suffix != ".safetensors":
            raise CheckpointError(f"{path} is not a .safetensors file; convert it first")
        return {path: None}
    if not path.is_dir():
        raise CheckpointError(
            f"{path} does not exist; give a local directory, or download the model into one first"
        )
    if (path / INDEX).exists():
        return _listed_files(path / INDEX)
    # A leading dot marks what editors and file managers leave behind, never a checkpoint.
    files = sorted(f for f in path.glob("*.safetensors") if not f.name.startswith("."))
    if not files:
        raise CheckpointError(f"{path} holds no *.safetensors files{_other_weights(path)}")
    return dict.fromkeys(files)


def _other_weights(path: Path) -> str:
    suffixes = {".bin", ".pt", ".pth", ".gguf"}
    others = sorted(f.name for f in path.iterdir() if f.suffix in suffixes)
    if not others:
        return "; is the download complete?"
    return (
        f", only {', '.join(others)}; convert them, for example by loading them in Transformers "
        "and calling save_pretrained"
    )


def _listed_files(index: Path) -> dict[Path, frozenset[str] | None]:
    tensors: dict[str, set[str]] = {}
    for name, file in _weight_map(index).items():
        if not _is_below(file):
            raise CheckpointError(
                f"{index} places {name} in {file!r}, which is not inside its directory"
            )
        tensors.setdefault(file, set()).add(name)
    missing = sorted(file for file in tensors if not (index.parent / file).is_file())
    if missing:
        raise CheckpointError(
            f"{index} lists files that are not there: {', '.join(missing)}; download them again"
        )
    return {index.parent / file: frozenset(tensors[file]) for file in sorted(tensors)}


def _weight_map(index: Path) -> dict[str, str]:
    try:
        content: Any = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{index} is not readable JSON ({error}); download it again"
        ) from error
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index} has no weight_map; download it again")
    for name, file in names.items():
        if not isinstance(file, str):
            raise CheckpointError(f"{index}: the file of {name} is {file!r}, not a name")
    return names


def _is_below(file: str) -> bool:
    """An index comes with the download; it may not point out of its own directory."""
    parts = PurePosixPath(file).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts
