# SPDX-License-Identifier: Apache-2.0
"""Bucket advice on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.zoo import save_llama
from trnport.adapters.cli import main
from trnport.adapters.cli.lengths import read_lengths
from trnport.core.errors import ConfigError

OPTIONS = ["--max-model-len", "64", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"]
SETTINGS = ["--memory-gib", "1", "--dtype", "float32"]


@pytest.mark.parametrize(
    "text", ["prompt,output\n20,5\n\n7, 9\n", "[20, 5]\n[7, 9]", '{"output": 5, "prompt": 20}\n7,9']
)
def test_formats(tmp_path: Path, text: str) -> None:
    (tmp_path / "lengths").write_text(text)
    assert read_lengths(tmp_path / "lengths") == [(20, 5), (7, 9)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3\n", "line 2: '3'"),
        ("1,2\nx,y\n", "line 2"),
        ("0,2\n", "line 1"),
        ("1.5,2\n", "line 1"),
        ('{"prompt": 3}\n', "line 1"),
        ("[1, true]\n", "line 1"),
        ("prompt,output\n", "has no lines"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "lengths").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_lengths(tmp_path / "lengths")


def test_a_missing_file_is_refused_before_anything_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "/nowhere", "--lengths", "/no/file"]) == 2
    assert "--lengths '/no/file' cannot be read" in capsys.readouterr().err


def test_the_proposal_can_be_used_and_pads_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_llama(tmp_path / "model")
    (tmp_path / "lengths").write_text("\n".join(["17,5"] * 9 + ["30,2", "60,20"]))
    plan = ["plan", str(tmp_path / "model"), *OPTIONS, *SETTINGS]
    buckets = '{"num_batched_tokens_buckets": [32, 64], "decode_context_length_buckets": [32]}'
    lengths = ["--lengths", str(tmp_path / "lengths")]
    assert main([*plan, "--neuron-config", buckets, *lengths]) == 0
    shown = capsys.readouterr().out
    proposed = json.loads(re.search(r"--neuron-config '(.*)'", shown)[1])
    assert proposed["num_batched_tokens_buckets"] == [17, 64]
    assert proposed["num_seqs_buckets"][-1] == 4
    assert len(proposed["decode_context_length_buckets"]) == 1
    assert "1 requests of more than max_model_len=64 tokens" in shown
    assert main([*plan, "--neuron-config", json.dumps(proposed)]) == 0
