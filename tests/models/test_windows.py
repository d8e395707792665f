# SPDX-License-Identifier: Apache-2.0
"""Qwen3 and Mistral, with and without sliding windows, against Transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.harness import incremental_logits, make_rig, reference_logits, relative_error
from tests.zoo_windows import MISTRALS, QWENS, save_window_model
from trnport import bootstrap
from trnport.adapters.fake import PoisoningKernels, StrictKernels
from trnport.adapters.local import LocalWorld
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.errors import UnsupportedConfigError

# Longer than three times the widest window, so that whole blocks fall out of it.
PROMPT = [(31 * i + 7) % 131 for i in range(29)]
FORCED = [7, 128, 3, 3, 90, 55, 1, 2, 60, 11, 19]
BUDGET = 1e-5
BUCKETS = {"num_batched_tokens_buckets": [3, 11, 16, 64], "num_seqs_buckets": [1, 2, 4]}
MODELS = [("qwen3", name) for name in QWENS] + [("mistral", name) for name in MISTRALS]
WINDOWED = [("qwen3", name) for name in QWENS if "_w" in name] + [("mistral", "windowed")]


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_prefill_and_every_decode_step_match_transformers(
    tmp_path: Path, family: str, name: str
) -> None:
    reference = save_window_model(tmp_path, family, name)
    rig = make_rig(tmp_path, neuron_config=BUCKETS)

    actual = rig.teacher_forced(PROMPT, FORCED)

    expected = reference_logits(reference, PROMPT + FORCED, last=len(FORCED) + 1)
    assert relative_error(actual, expected) < BUDGET
    if not name.endswith("_w1"):  # Transformers' cache forgets nothing with a window of 1
        assert relative_error(actual, incremental_logits(reference, PROMPT, FORCED)) < BUDGET


@pytest.mark.parametrize(("family", "name"), WINDOWED)
def test_the_window_matters(tmp_path: Path, family: str, name: str) -> None:
    # Otherwise the other tests here would pass on a model that ignores it.
    save_window_model(tmp_path, family, name)
    windowed = make_rig(tmp_path).teacher_forced(PROMPT, FORCED)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config |= {"sliding_window": None, "use_sliding_window": False, "layer_types": None}
    file.write_text(json.dumps(config))

    assert relative_error(make_rig(tmp_path).teacher_forced(PROMPT, FORCED), windowed) > 0.01


@pytest.mark.parametrize("length", [1, 6, 7, 8, 9, 14, 21])
def test_prompts_around_the_window(tmp_path: Path, length: int) -> None:
    reference = save_window_model(tmp_path, "qwen3", "mixed_w7")
    rig = make_rig(tmp_path, neuron_config=BUCKETS)

    actual = rig.teacher_forced(PROMPT[:length], FORCED)

    expected = reference_logits(reference, PROMPT[:length] + FORCED, last=len(FORCED) + 1)
    assert relative_error(actual, expected) < BUDGET


@pytest.mark.parametrize("chunks", [[29], [1, 28], [4, 8, 17], [5, 11, 1, 12], [3] * 9 + [2]])
@pytest.mark.parametrize("contexts", [None, [6, 12, 24]])
@pytest.mark.parametrize("name", ["mixed_w3", "mixed_w7", "mixed_w9", "all_sliding_w1"])
def test_a_chunked_prompt_equals_one_prefill(
    tmp_path: Path, name: str, chunks: list[int], contexts: list[int] | None
) -> None:
    reference = save_window_model(tmp_path, "qwen3", name)
    settings = BUCKETS | {"decode_context_length_buckets": contexts}
    kernels = PoisoningKernels(StrictKernels(TorchCpuKernels()))
    rig = make_rig(tmp_path, neuron_config=settings, kernels=kernels)

    actual = rig.teacher_forced(PROMPT, FORCED, chunks=chunks)

    expected = reference_logits(reference, PROMPT + FORCED, last=len(FORCED) + 1)
    assert relative_error(actual, expected) < BUDGET


DEGREES = [("mixed_w7", tp) for tp in (2, 3, 6)] + [("full_biased", 3)]
DEGREES += [("eight_heads", tp) for tp in (2, 4, 8)] + [("all_sliding_w8", 6)]


@pytest.mark.parametrize(("name", "tp"), DEGREES)
def test_every_tensor_parallel_degree_equals_one_rank(tmp_path: Path, name: str, tp: int) -> None:
    reference = save_window_model(tmp_path, "qwen3", name)

    def one_rank(collectives: object) -> torch.Tensor:
        rig = make_rig(tmp_path, neuron_config=BUCKETS, collectives=collectives)
        return rig.teacher_forced(PROMPT, FORCED, chunks=[4, 25])

    ranks = LocalWorld(tp).run(one_rank)

    expected = reference_logits(reference, PROMPT + FORCED, last=len(FORCED) + 1)
    for actual in ranks:
        assert relative_error(actual, expected) < BUDGET


def test_greedy_text_of_a_session_equals_transformers(tmp_path: Path) -> None:
    reference = save_window_model(tmp_path, "qwen3", "mixed_w7")
    ids = torch.tensor([PROMPT])
    output = reference.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False
    )
    session = bootstrap.open_session(tmp_path, dtype=torch.float32, max_model_len=80, block_size=4)

    assert session.generate([PROMPT], max_tokens=40) == [output[0, len(PROMPT) :].tolist()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 0}, "sliding_window=0 must be a positive number"),
        ({"sliding_window": 2.5}, "sliding_window=2.5 must be a positive number"),
        ({"use_sliding_window": False}, "no window: use_sliding_window=False"),
        ({"sliding_window": None}, "no window: .*sliding_window=None"),
        ({"layer_types": ["full_attention"]}, "1 entries for num_hidden_layers=3"),
        ({"layer_types": ["full_attention"] * 2 + ["chunked"]}, "layer_types names chunked"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping=30.0"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"rope_parameters": None}, "rope_theta"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
    ],
)
def test_refused_by_name(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    save_window_model(tmp_path, "qwen3", "mixed_w7")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    with pytest.raises(Exception, match=message) as refusal:
        make_rig(tmp_path)
    assert refusal.type.__module__ == UnsupportedConfigError.__module__
