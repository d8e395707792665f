# SPDX-License-Identifier: Apache-2.0
"""A model on native kernels: packed weights, chunks, decode, compiled and not."""

from __future__ import annotations

import pytest
import torch

from tests.harness import make_rig, relative_error
from tests.zoo import save_llama
from trnport import bootstrap
from trnport.adapters.inductor import InductorCompiler
from trnport.adapters.program_cache import ProgramCache

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
FORCED = [8, 9, 7]
SIZES = {
    "vocab_size": 96,
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
PACKED = ("qkv_proj.weight", "o_proj.weight", "gate_weight", "up_weight", "down_weight")
CONFIG = {
    "num_batched_tokens_buckets": [8, 40],
    "num_seqs_buckets": [4],
    "enable_prompt_logprobs": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return save_llama(folder, "biased", **SIZES), folder


def rig_of(folder, dtype, kernels="native", **settings):
    config = {**CONFIG, "kernels": kernels}
    return make_rig(folder, dtype=dtype, neuron_config=config, max_model_len=40, **settings)


@pytest.mark.parametrize("chunks", [None, [8, 7], [3, 8, 4]])
def test_logits_are_those_of_transformers(model, chunks):
    reference, folder = model
    with torch.no_grad():
        want = reference(torch.tensor([PROMPT + FORCED])).logits[0, len(PROMPT) - 1 :]
    wide = rig_of(folder, torch.float32).teacher_forced(PROMPT, FORCED, chunks)
    assert relative_error(wide, want) < 1e-5
    narrow = rig_of(folder, torch.bfloat16).teacher_forced(PROMPT, FORCED, chunks)
    plain = rig_of(folder, torch.bfloat16, "torch_cpu").teacher_forced(PROMPT, FORCED, chunks)
    # Fewer roundings than the reference's operators, so no farther from the truth.
    assert relative_error(narrow.float(), want) < 1.1 * relative_error(plain.float(), want) + 1e-3


def test_every_large_weight_is_packed_and_none_is_held_twice(model):
    packed = rig_of(model[1], torch.bfloat16).model
    plain = rig_of(model[1], torch.bfloat16, "torch_cpu").model
    sizes = {name: p.shape for name, p in packed.named_parameters()}
    assert all(len(s) == 4 for n, s in sizes.items() if n.endswith((*PACKED, "lm_head.weight")))
    assert sum(p.numel() for p in packed.parameters()) == sum(p.numel() for p in plain.parameters())


@pytest.mark.slow
def test_compiled_programs_write_the_caches_in_place(model, tmp_path):
    bootstrap.kernels("native")
    eager = rig_of(model[1], torch.bfloat16)
    expected = eager.teacher_forced(PROMPT, FORCED, [8, 7])
    compiled = rig_of(
        model[1], torch.bfloat16, compiler=InductorCompiler(ProgramCache(tmp_path / "programs"))
    )
    logits = compiled.teacher_forced(PROMPT, FORCED, [8, 7])
    assert relative_error(logits.float(), expected.float()) < 0.02
    for name, pair in compiled.caches.items():
        for ours, theirs in zip(pair, eager.caches[name], strict=True):
            written = ~theirs.isnan()
            assert torch.equal(~ours.isnan(), written) and written.any()
            assert relative_error(ours[written].float(), theirs[written].float()) < 0.02
