# SPDX-License-Identifier: Apache-2.0
"""Embeddings of texts, against hidden states of Transformers."""

import base64
import json
import signal

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from vllm import PoolingParams
from vllm.exceptions import VLLMValidationError

from tests.adapters.vllm.conftest import open_llm, save_tokenizer, scheduler_of, worker_of
from tests.adapters.vllm.test_config import config_for
from tests.adapters.vllm.test_llm import prompt
from tests.adapters.vllm.test_serve import Server
from tests.zoo import edit_weights, save_llama

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

HIDDEN = 48
MATRYOSHKA = {"is_matryoshka": True}


def last_state(model, ids, size=HIDDEN):
    """The last token's hidden state behind the last norm, cut to ``size``, of length 1."""
    with torch.no_grad():
        row = model.model(torch.tensor([ids])).last_hidden_state[0, -1, :size]
    return row / row.norm()


def embed(engine, prompts, **params):
    outputs = engine.embed(
        [{"prompt_token_ids": ids} for ids in prompts],
        pooling_params=PoolingParams(**params),
        use_tqdm=False,
    )
    return torch.tensor([output.outputs.embedding for output in outputs])


@pytest.fixture(scope="module")
def pooler(tiny):
    with open_llm(tiny[0], runner="pooling", hf_overrides=MATRYOSHKA) as engine:
        yield engine


@pytest.mark.compiled
def test_the_last_tokens_state_however_a_prompt_is_chunked(pooler, tiny):
    prompts = [prompt(n, seed=11) for n in (1, 5, 32, 33, 40, 64, 2)]
    expected = torch.stack([last_state(tiny[1], ids) for ids in prompts])
    assert torch.allclose(embed(pooler, prompts), expected, atol=2e-6)
    # Again with everything but the last tokens in the prefix cache: of 33 tokens just one is
    # computed, of 1 too.
    assert torch.allclose(embed(pooler, prompts), expected, atol=2e-6)
    assert not scheduler_of(pooler).requests


def test_dimensions_cut_and_then_normalise(pooler, tiny):
    ids = prompt(12, seed=12)
    for size in (1, 7, HIDDEN):
        (row,) = embed(pooler, [ids], dimensions=size)
        assert torch.allclose(row, last_state(tiny[1], ids, size), atol=2e-6)
    with pytest.raises(VLLMValidationError, match="dimensions"):
        embed(pooler, [ids], dimensions=HIDDEN + 1)
    (raw,) = embed(pooler, [ids], use_activation=False)
    assert abs(raw.norm() - 1) > 0.1


def test_prefill_programs_only_and_no_head(pooler):
    worker = worker_of(pooler)
    assert {name.split("_")[0] for name in worker._executor.program_names} == {"prefill"}
    assert not [name for name, _ in worker.get_model().named_parameters() if "lm_head" in name]
    assert worker.get_supported_tasks() == ("embed",)


def test_other_tasks_are_refused_by_name(pooler):
    with pytest.raises(ValueError, match="Classification API is not supported"):
        pooler.classify(["a"])
    with pytest.raises(ValueError, match="not supported"):
        pooler.encode(["a"], pooling_task="token_embed")
    with pytest.raises(ValueError, match="only supported for generative models"):
        pooler.generate("a")
    assert len(embed(pooler, [prompt(3)])) == 1


def sentence_transformers(folder, mode):
    """The files by which a checkpoint chooses its pooling."""
    stem = "sentence_transformers.models."
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": stem + "Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": stem + "Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": stem + "Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": HIDDEN, f"pooling_mode_{mode}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def test_a_bare_decoder_pools_as_its_checkpoint_says(tmp_path):
    model = save_llama(tmp_path, "untied")
    save_tokenizer(tmp_path)
    sentence_transformers(tmp_path, "mean_tokens")
    state = {key: value.clone() for key, value in model.state_dict().items()}
    bare = {key.removeprefix("model."): v for key, v in state.items() if key != "lm_head.weight"}
    edit_weights(tmp_path, **dict.fromkeys(state), **bare)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaModel"]}))
    prompts = [prompt(n, seed=13) for n in (1, 17, 64)]
    with open_llm(tmp_path, max_num_batched_tokens=64) as engine:
        found = embed(engine, prompts)
    with torch.no_grad():
        means = [model.model(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in prompts]
    expected = torch.stack([row / row.norm() for row in means])
    assert torch.allclose(found, expected, atol=2e-6)


REFUSED = {
    "convert": ({"convert": "classify"}, "convert='classify' is not supported; use 'embed'"),
    "task": ({"pooler_config": {"task": "token_embed"}}, "pooling task 'token_embed'.*'embed'"),
    "chunked mean": (
        {"pooler_config": {"seq_pooling_type": "MEAN"}, "enable_chunked_prefill": True},
        "MEAN pooling with enable_chunked_prefill is not supported",
    ),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_settings_are_refused_by_name(tiny, settings, message):
    if "pooler_config" in settings:
        from vllm.config import PoolerConfig

        settings = {**settings, "pooler_config": PoolerConfig(**settings["pooler_config"])}
    with pytest.raises(ValueError, match=message):
        config_for(tiny[0], runner="pooling", **settings)


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    log = tmp_path_factory.mktemp("embed") / "log.txt"
    options = ("--runner=pooling", f"--hf-overrides={json.dumps(MATRYOSHKA)}")
    with Server(tiny[0], log, *options) as running:
        running.wait_until_ready()
        yield running
        assert running.stop(signal.SIGTERM) == 0, running.text()[-4000:]
        assert "Traceback" not in running.text()


def post(server, inputs, **fields):
    status, answer = server.post("/v1/embeddings", {"input": inputs, **fields})
    assert status == 200, answer
    return [item["embedding"] for item in answer["data"]]


def test_the_server_embeds_a_batch_in_both_encodings(server, tiny):
    prompts = [prompt(n, seed=14) for n in (3, 33, 1, 50)]
    expected = torch.stack([last_state(tiny[1], ids, 7) for ids in prompts])
    floats = torch.tensor(post(server, prompts, dimensions=7, encoding_format="float"))
    assert torch.allclose(floats, expected, atol=2e-6)
    encoded = post(server, prompts, dimensions=7, encoding_format="base64")
    decoded = [np.frombuffer(base64.b64decode(text), dtype="<f4") for text in encoded]
    # Not equal to the last bit: now the prompts' beginnings come from the prefix cache.
    assert torch.allclose(torch.tensor(np.stack(decoded)), expected, atol=2e-6)


def test_bad_inputs_get_a_400_and_the_server_lives(server):
    before = post(server, "a text")
    bad = [
        {"input": []}, {"input": [[]]}, {"input": ""}, {"input": "x" * 65}, {"input": [5, 131]},
        {"input": [-1]}, {"input": "a", "dimensions": 99}, {"input": "a", "dimensions": 0},
    ]  # fmt: skip
    for body in bad:
        status, answer = server.post("/v1/embeddings", body)
        assert 400 <= status < 500, (body, answer)
    for path in ("/v1/completions", "/classify"):
        status, _ = server.post(path, {"prompt": "a", "input": "a"})
        assert 400 <= status < 500
    assert post(server, "a text") == before
