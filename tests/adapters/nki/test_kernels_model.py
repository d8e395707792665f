# SPDX-License-Identifier: Apache-2.0
"""Whole models on our kernels, in the simulator, against the same models on torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness import make_rig, relative_error
from tests.zoo import save_llama
from trnport import bootstrap
from trnport.adapters.cli.demo_model import default_directory
from trnport.adapters.local import LocalWorld

PROMPTS = [[5, 6, 7, 8, 9], [3] * 20]


def tokens(path: Path, **settings: Any) -> list[list[int]]:
    session = bootstrap.open_session(
        path, dtype=torch.float32, max_model_len=64, max_num_seqs=2, block_size=4, **settings
    )
    return session.generate(PROMPTS, max_tokens=8)


@pytest.mark.parametrize("name", ["awkward", "biased"])
def test_a_model_says_the_same_on_torch_and_on_kernels(tmp_path: Path, name: str) -> None:
    save_llama(tmp_path, name)
    kernels = bootstrap.nki_kernels(precise=True, strict=True)
    want = tokens(tmp_path)
    assert tokens(tmp_path, kernels=kernels) == want
    assert tokens(tmp_path, neuron_config={"kernels": "nki"}) == want
    assert set(kernels.coverage()) == {  # type: ignore[attr-defined]
        "rms_norm",
        "qkv_proj",
        "rope",
        "kv_write",
        "prefill_attention",
        "prefill_attention_with_prior",
        "decode_attention",
        "o_proj",
        "mlp",
        "linear",
    }


@pytest.mark.parametrize("chunks", [None, [7, 13, 1]])
def test_logits_over_poisoned_caches_equal_torch(tmp_path: Path, chunks: list[int] | None) -> None:
    save_llama(tmp_path, "awkward")
    prompt, forced = list(range(3, 24)), [40, 41, 42]
    logits = [
        make_rig(tmp_path, kernels=kernels).teacher_forced(prompt, forced, chunks)
        for kernels in (bootstrap.nki_kernels(strict=True), bootstrap.kernels("torch_cpu"))
    ]
    assert relative_error(*logits) <= 1e-5


def test_ranks_of_two_cores_agree_with_one_rank_on_torch(tmp_path: Path) -> None:
    save_llama(tmp_path, "biased")
    prompt, forced = list(range(3, 24)), [40, 41]

    def one_rank(collectives: Any) -> torch.Tensor:
        kernels = bootstrap.nki_kernels(lnc=2, strict=True)
        return make_rig(tmp_path, collectives=collectives, kernels=kernels).teacher_forced(
            prompt, forced
        )

    want = make_rig(tmp_path).teacher_forced(prompt, forced)
    for got in LocalWorld(3).run(one_rank):
        assert relative_error(got, want) <= 1e-5


def test_bf16_logits_err_no_more_than_torch_in_bf16(tmp_path: Path) -> None:
    save_llama(tmp_path, "awkward")
    prompt, forced = list(range(3, 24)), [40, 41, 42]
    exact = make_rig(tmp_path).teacher_forced(prompt, forced)
    errors = [
        relative_error(
            make_rig(tmp_path, dtype=torch.bfloat16, kernels=kernels)
            .teacher_forced(prompt, forced)
            .float(),
            exact,
        )
        for kernels in (bootstrap.nki_kernels(strict=True), bootstrap.kernels("torch_cpu"))
    ]
    assert errors[0] <= 1.2 * errors[1]


def test_a_simulated_decode_step_is_quick(tmp_path: Path) -> None:
    """Two layers; the best of three, as the machine may be busy."""
    save_llama(tmp_path, "awkward")
    rig = make_rig(tmp_path, kernels=bootstrap.nki_kernels(strict=True))
    request = rig.request(list(range(3, 24)), room=4)
    rig.run([request], [21])
    seconds = []
    for token in (40, 41, 42):
        request.token_ids.append(token)
        start = time.perf_counter()
        rig.run([request], [1])
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1.0


@pytest.mark.slow
def test_smollm2_says_the_same_on_torch_and_on_kernels() -> None:
    path = default_directory()
    if not (path / "config.json").exists():
        pytest.skip("the demo model is not here; run `make model`")
    settings = {"num_batched_tokens_buckets": [16], "num_seqs_buckets": [1]}
    prompt = [504, 3575, 282, 4649, 314]
    texts = []
    for name in ("torch_cpu", "nki"):
        rig = make_rig(
            path,
            max_model_len=16,
            max_num_seqs=1,
            num_blocks=8,
            neuron_config=settings,
            kernels=bootstrap.kernels(name),
        )
        request = rig.request(prompt, room=3)
        count = len(prompt)
        for _ in range(3):
            logits = rig.run([request], [count])[request.request_id]
            request.token_ids.append(int(logits.argmax()))
            count = 1
        texts.append(request.token_ids)
    assert texts[0] == texts[1]
