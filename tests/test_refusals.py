# SPDX-License-Identifier: Apache-2.0
"""What cannot work is refused in a sentence, before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.zoo import edit_weights, save_llama
from trnport import bootstrap
from trnport.adapters.fake import RecordingWeightSource
from trnport.core.engine.sampling import SamplingParams
from trnport.core.errors import CheckpointError, ConfigError, RequestError, TrnportError


def edit_config(directory: Path, **changes: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def open_small(directory: Path, **options: Any) -> Any:
    return bootstrap.open_session(
        directory, **({"dtype": torch.float32, "max_model_len": 32, "max_num_seqs": 2} | options)
    )


CONFIG_CHANGES = [
    ({"architectures": ["LlamaForCausualLM"]}, "nearest: LlamaForCausalLM"),
    ({"architectures": None}, "Supported: LlamaForCausalLM"),
    ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping=30.0"),
    ({"sliding_window": 16}, "sliding_window=16"),
    ({"logits_scaling": 8.0, "residual_multiplier": 0.2}, "logits_scaling=8.0, residual_mult"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config="),
    ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
    ({"rms_norm_eps": None}, "lacks 'rms_norm_eps'"),
    ({"num_key_value_heads": 4}, "num_key_value_heads=4 does not divide"),
    ({"num_attention_heads": 7, "head_dim": None}, "hidden_size=48 is not a multiple"),
    ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
]


@pytest.mark.parametrize(("changes", "message"), CONFIG_CHANGES)
def test_a_model_configuration_is_refused_before_weights_are_read(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save_llama(tmp_path)
    edit_config(tmp_path, **changes)
    source = RecordingWeightSource(bootstrap.weight_source(tmp_path))
    with pytest.raises(ConfigError, match=message):
        open_small(tmp_path, source=source)
    assert not source.reads


NEURON_CONFIGS = [
    ({"num_seq_buckets": [1, 2]}, "num_seqs_buckets"),
    ({"num_seqs_buckets": [2, 1]}, "num_seqs_buckets"),
    ({"num_seqs_buckets": [1]}, "num_seqs_buckets"),
    ({"num_batched_tokens_buckets": [8, 16]}, "num_batched_tokens_buckets"),
    ({"num_batched_tokens_buckets": [16, 8, 32]}, "num_batched_tokens_buckets"),
    ({"decode_context_length_buckets": [32]}, "decode_context_length_buckets"),
    ({"kernels": "cuda"}, "kernels"),
    ({"compiler": "gcc"}, "compiler"),
    ({"quantization": "mxfp4"}, "quantization"),
]


@pytest.mark.parametrize(("settings", "message"), NEURON_CONFIGS)
def test_settings_are_refused_before_weights_are_read(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    save_llama(tmp_path)
    source = RecordingWeightSource(bootstrap.weight_source(tmp_path))
    with pytest.raises(ConfigError, match=message):
        open_small(tmp_path, source=source, neuron_config=settings)
    assert not source.reads


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8])
def test_a_dtype_is_refused_before_weights_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    save_llama(tmp_path)
    source = RecordingWeightSource(bootstrap.weight_source(tmp_path))
    with pytest.raises(ConfigError, match=r"choose one of \['bfloat16', 'float32'\]"):
        open_small(tmp_path, source=source, dtype=dtype)
    assert not source.reads


def damaged(directory: Path, kind: str) -> None:
    file = directory / "model.safetensors"
    data = file.read_bytes()
    if kind == "truncated":
        file.write_bytes(data[: len(data) // 2])
    elif kind == "corrupted":
        file.write_bytes(b"\xff" * 64 + data[64:])
    elif kind == "empty":
        file.write_bytes(b"")
    else:
        file.unlink()


@pytest.mark.parametrize("kind", ["truncated", "corrupted", "empty", "absent"])
def test_a_damaged_checkpoint_names_its_file(tmp_path: Path, kind: str) -> None:
    save_llama(tmp_path)
    damaged(tmp_path, kind)
    with pytest.raises(CheckpointError, match="safetensors"):
        open_small(tmp_path)


def test_missing_unexpected_and_misshaped_tensors_come_in_one_message(tmp_path: Path) -> None:
    save_llama(tmp_path)
    edit_weights(
        tmp_path,
        **{
            "model.norm.weight": None,
            "model.layers.0.mlp.up_proj.weight": torch.zeros(78, 48),
            "model.layers.0.self_attn.q_norm.weight": torch.zeros(8),
        },
    )
    with pytest.raises(CheckpointError) as caught:
        open_small(tmp_path)
    for name in ("model.norm.weight", "mlp.up_proj.weight", "q_norm.weight"):
        assert name in str(caught.value)


@pytest.mark.parametrize(("tied", "stored", "fails"), [
    (True, "none", False), (True, "equal", False), (True, "other", False),
    (False, "none", True), (False, "other", False),
])  # fmt: skip
def test_checkpoint_and_config_decide_the_head_together(
    tmp_path: Path, tied: bool, stored: str, fails: bool
) -> None:
    model = save_llama(tmp_path, tie_word_embeddings=True)
    embedding = model.get_input_embeddings().weight.detach().clone()
    heads = {"none": None, "equal": embedding, "other": embedding.flip(0).contiguous()}
    if heads[stored] is not None:
        edit_weights(tmp_path, **{"lm_head.weight": heads[stored]})
    edit_config(tmp_path, tie_word_embeddings=tied)
    if fails:
        with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
            open_small(tmp_path)
        return
    (token,) = open_small(tmp_path).generate([[3, 5]], max_tokens=1)[0]
    expected = int(model(torch.tensor([[3, 5]])).logits[0, -1].argmax())
    assert token == (130 - expected if stored == "other" else expected)


def test_bad_requests_leave_the_engine_serving(tmp_path: Path) -> None:
    save_llama(tmp_path)
    session = open_small(tmp_path)
    before = session.generate([[1, 2, 3]], max_tokens=4)
    for prompt, count in [([], 1), ([131], 1), ([1] * 32, 1), ([1], 32), ([1], 0)]:
        with pytest.raises(RequestError):
            session.add(prompt, max_tokens=count)
    with pytest.raises(RequestError, match="top_p=2"):
        session.add([1], SamplingParams(top_p=2.0))
    assert session.generate([[1] * 31], max_tokens=1)
    assert session.generate([[1, 2, 3]], max_tokens=4) == before


@pytest.mark.parametrize("missing", ["config.json", "."])
def test_a_path_without_a_model_says_so(tmp_path: Path, missing: str) -> None:
    with pytest.raises(TrnportError, match=r"config\.json"):
        open_small(tmp_path / missing)
