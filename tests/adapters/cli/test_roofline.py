# SPDX-License-Identifier: Apache-2.0
"""``trnport roofline``: what it prints, draws and refuses."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from trnport.adapters.cli import main
from trnport.adapters.cli.roofline import LABEL

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 77,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


SMALL = ["--batch", "3", "--context", "40", "--tp", "2"]


def test_prints_every_operator_as_an_estimate(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roofline", str(model / "config.json"), *SMALL, "--target", "trn3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(LABEL)
    assert "decode_b3_ctx40 on trn3, 1 core(s) of tiny, rank 0 of 2, bfloat16" in out
    assert out.count("decode_attention") == 3
    assert "least time of our kernels" in out
    assert "not yet run on hardware" in out


def test_json_adds_up(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--phase", "prefill", "--lnc", "2", "--dtype", "float32", "--json"]
    assert main(["roofline", str(model), *SMALL, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["label"] == LABEL
    assert found["program"] == "prefill_s40"
    assert found["step_seconds"] == pytest.approx(
        sum(call["times"] * call["bound_seconds"] for call in found["calls"])
    )
    assert found["hbm_bytes"] == sum(call["times"] * call["hbm_bytes"] for call in found["calls"])
    assert all(len(call["cores"]) == 2 for call in found["calls"])
    assert found["least_bytes"] <= found["hbm_bytes"]


def test_draws_a_png(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "roofline.png"
    assert main(["roofline", str(model), *SMALL, "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size < 60_000
    assert main(["roofline", str(model), *SMALL, "--plot", str(tmp_path / "no" / "x.png")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_refused_before_anything_is_counted(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["roofline", str(model), "--plot", "x.png"]) == 2
    found = capsys.readouterr()
    assert "pip install 'trnport[plot]'" in found.err
    assert not found.out


def test_a_call_past_a_limit_is_named(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = {**CONFIG, "hidden_size": 10248, "num_attention_heads": 2, "intermediate_size": 8}
    wide |= {"head_dim": 16, "num_key_value_heads": 2, "num_hidden_layers": 1}
    (model / "config.json").write_text(json.dumps(wide))
    assert main(["roofline", str(model), "--batch", "1", "--context", "16"]) == 1
    out = capsys.readouterr().out
    assert "no kernel for rms_norm: hidden above 10240" in out
    assert "not counted" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tp", "4"], "does not divide the model's 6 query heads; choose one of [1, 2, 3, 6]"),
        (["--tp", "0"], "tp=0 must be a positive integer"),
        (["--batch", "0"], "batch=0 must be a positive integer"),
        (["--context", "-1"], "context=-1 must be a positive integer"),
        (["--context", "1"], "at least 2"),
        (["--block-size", "0"], "block_size=0 must be a positive integer"),
    ],
)
def test_a_bad_size_is_refused(
    model: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["roofline", str(model), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_config_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", str(tmp_path)]) == 2
    assert "config.json does not exist" in capsys.readouterr().err
