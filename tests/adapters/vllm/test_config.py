# SPDX-License-Identifier: Apache-2.0
"""Configurations: our defaults, and refusals by name before anything is loaded."""

import json

import pytest
import torch

pytest.importorskip("vllm")

from vllm.engine.arg_utils import EngineArgs

from tests.adapters.vllm.conftest import DEFAULTS
from trnport.adapters.vllm.settings import neuron_config_of

pytestmark = pytest.mark.vllm


def config_for(folder, **settings):
    return EngineArgs(model=str(folder), **{**DEFAULTS, **settings}).create_engine_config()


@pytest.fixture
def folder(tiny):
    return tiny[0]


def changed(tiny, tmp_path, **fields):
    """The tiny checkpoint with other fields in its config.json, and no weights at all."""
    config = json.loads((tiny[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **fields}))
    return tmp_path


def test_defaults(folder):
    config = config_for(folder, block_size=None)
    assert config.parallel_config.worker_cls == "trnport.adapters.vllm.worker.NeuronWorker"
    assert config.cache_config.block_size == 32
    assert config.cache_config.enable_prefix_caching
    assert config.scheduler_config.enable_chunked_prefill
    assert config.scheduler_config.async_scheduling


def test_explicit_settings_win(folder):
    config = config_for(folder, block_size=8, worker_cls="somewhere.Worker")
    assert config.parallel_config.worker_cls == "somewhere.Worker"
    assert config.cache_config.block_size == 8


def test_auto_dtype_of_a_float16_checkpoint_is_bfloat16(tiny, tmp_path):
    folder = changed(tiny, tmp_path, dtype="float16")
    assert (
        config_for(folder, dtype="auto", tokenizer=str(tiny[0])).model_config.dtype
        == torch.bfloat16
    )


def test_neuron_config_gets_vllms_limits(folder):
    config = neuron_config_of(config_for(folder, max_num_seqs=3))
    assert config.num_seqs_buckets[-1] == 3
    assert config.num_batched_tokens_buckets[-1] == 32


def test_cache_size_from_the_environment(folder, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    assert config_for(folder).cache_config.kv_cache_memory_bytes == 2 * 2**30
    explicit = config_for(folder, kv_cache_memory_bytes=5).cache_config
    assert explicit.kv_cache_memory_bytes == 5


REFUSED = {
    "float16": ({"dtype": "float16"}, r"dtype=float16.*bfloat16 or float32"),
    "pipeline parallel": ({"pipeline_parallel_size": 2}, r"(?i)pipeline"),
    "lora": ({"enable_lora": True}, r"LoRA is not supported.*without `enable_lora`"),
    "cache dtype": ({"kv_cache_dtype": "fp8"}, r"kv_cache_dtype='fp8' is not supported"),
    "dummy weights": ({"load_format": "dummy"}, r"load_format='dummy' is not supported"),
    "expert parallel": ({"enable_expert_parallel": True}, r"enable_expert_parallel|[Ee]xpert"),
    "speculation": (
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        r"speculative decoding .* is not supported",
    ),
    "namespace": ({"additional_config": {"neuron_confg": {}}}, r"'neuron_confg'.*'neuron_config'"),
    "flat key": ({"additional_config": {"num_seqs_buckets": [4]}}, r"options go inside"),
    "unknown key": (
        {"additional_config": {"neuron_config": {"num_seq_buckets": [4]}}},
        r"num_seq_buckets.*num_seqs_buckets",
    ),
    "bucket limit": (
        {"additional_config": {"neuron_config": {"num_seqs_buckets": [1, 3]}}},
        r"num_seqs_buckets",
    ),
    "bucket order": (
        {"additional_config": {"neuron_config": {"num_batched_tokens_buckets": [32, 16]}}},
        r"num_batched_tokens_buckets",
    ),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(folder, settings, message):
    with pytest.raises((ValueError, NotImplementedError), match=message):
        config_for(folder, **settings)


def test_an_unknown_architecture_is_refused(tiny, tmp_path):
    folder = changed(tiny, tmp_path, architectures=["LlamaForTimeTravel"])
    with pytest.raises(ValueError, match=r"LlamaForTimeTravel.*LlamaForCausalLM"):
        config_for(folder, tokenizer=str(tiny[0]))


def test_an_architecture_that_vllm_knows_and_we_do_not_is_refused(tiny, tmp_path):
    folder = changed(tiny, tmp_path, architectures=["GPT2LMHeadModel"])
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel.*LlamaForCausalLM"):
        config_for(folder, tokenizer=str(tiny[0]))


def test_mathematics_we_lack_are_refused_before_loading(tiny, tmp_path):
    folder = changed(tiny, tmp_path, hidden_act="gelu")
    with pytest.raises(ValueError, match=r"hidden_act.*gelu"):
        config_for(folder, tokenizer=str(tiny[0]))


def test_a_neuron_device_is_refused_with_the_way_out(folder, monkeypatch):
    monkeypatch.setenv("TRNPORT_DEVICE", "neuron")
    with pytest.raises(ValueError, match=r"TRNPORT_DEVICE=cpu"):
        config_for(folder)


def test_an_unknown_device_is_refused(folder, monkeypatch):
    monkeypatch.setenv("TRNPORT_DEVICE", "gpu")
    with pytest.raises(ValueError, match=r"TRNPORT_DEVICE='gpu'.*cpu, neuron"):
        config_for(folder)


@pytest.mark.parametrize(("limit", "shared"), [(32, True), (64, False)])
def test_prefix_caching_is_off_where_keys_depend_on_the_length(tiny, tmp_path, limit, shared):
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    folder = changed(tiny, tmp_path, max_position_embeddings=32, rope_parameters=rope)
    config = config_for(folder, tokenizer=str(tiny[0]), max_model_len=limit)
    assert config.cache_config.enable_prefix_caching is shared
