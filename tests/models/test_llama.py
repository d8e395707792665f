# SPDX-License-Identifier: Apache-2.0
"""Llama against Transformers, and against itself under every way to run it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.harness import incremental_logits, make_rig, reference_logits, relative_error
from tests.zoo import AWKWARD, LLAMAS, save_llama
from trnport.adapters.fake import PoisoningKernels, StrictKernels
from trnport.adapters.local import LocalWorld
from trnport.adapters.torch_cpu import TorchCpuKernels

PROMPT = [5, 17, 130, 0, 42, 99, 3, 64, 77, 11, 23]
FORCED = [7, 128, 3, 3, 90, 55, 1, 2, 60]
BUDGET = 1e-5
BUCKETS = {"num_batched_tokens_buckets": [3, 11, 16, 64], "num_seqs_buckets": [1, 2, 4]}


@pytest.mark.parametrize("name", LLAMAS)
def test_prefill_and_every_decode_step_match_transformers(tmp_path: Path, name: str) -> None:
    reference = save_llama(tmp_path, name)
    rig = make_rig(tmp_path, neuron_config=BUCKETS)

    actual = rig.teacher_forced(PROMPT, FORCED)

    assert relative_error(actual, incremental_logits(reference, PROMPT, FORCED)) < BUDGET


@pytest.mark.parametrize("name", ["dynamic_rope", "longrope"])
def test_frequencies_follow_the_sequence_past_its_original_length(
    tmp_path: Path, name: str
) -> None:
    reference = save_llama(tmp_path, name)
    prompt = [(7 * i) % 131 for i in range(30)]
    rig = make_rig(tmp_path, neuron_config=BUCKETS)

    actual = rig.teacher_forced(prompt, FORCED)

    assert relative_error(actual, incremental_logits(reference, prompt, FORCED)) < BUDGET


def test_a_sharded_checkpoint_with_a_stray_file_loads_by_its_index(tmp_path: Path) -> None:
    reference = save_llama(tmp_path, "awkward", shards=True)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1

    actual = make_rig(tmp_path).teacher_forced(PROMPT, FORCED)

    expected = reference_logits(reference, PROMPT + FORCED, last=len(FORCED) + 1)
    assert relative_error(actual, expected) < BUDGET


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 10, 11, 12, 16, 17, 54])
def test_every_prefill_bucket_gives_the_same_logits(tmp_path: Path, length: int) -> None:
    reference = save_llama(tmp_path)
    prompt = [(31 * i + 7) % 131 for i in range(length)]
    rig = make_rig(tmp_path, neuron_config=BUCKETS)

    actual = rig.teacher_forced(prompt, FORCED)

    expected = reference_logits(reference, prompt + FORCED, last=len(FORCED) + 1)
    assert relative_error(actual, expected) < BUDGET


@pytest.mark.parametrize("contexts", [None, [12], [4, 16, 20, 33]])
def test_every_decode_context_bucket_gives_the_same_logits(
    tmp_path: Path, contexts: list[int] | None
) -> None:
    reference = save_llama(tmp_path)
    forced = [(5 * i + 2) % 131 for i in range(40)]
    settings = BUCKETS | {"decode_context_length_buckets": contexts}
    rig = make_rig(tmp_path, neuron_config=settings)

    actual = rig.teacher_forced(PROMPT, forced)

    expected = reference_logits(reference, PROMPT + forced, last=len(forced) + 1)
    assert relative_error(actual, expected) < BUDGET
    used = [name for name in rig.executor.program_names if name.startswith("decode")]
    assert len(used) == 1 + sum(c > len(PROMPT) for c in contexts or [])


@pytest.mark.parametrize("chunks", [[11], [1, 10], [4, 4, 3], [5, 1, 5], [3] * 3 + [2], [1] * 11])
@pytest.mark.parametrize("contexts", [None, [8]])
def test_a_chunked_prompt_equals_one_prefill(
    tmp_path: Path, chunks: list[int], contexts: list[int] | None
) -> None:
    reference = save_llama(tmp_path)
    settings = BUCKETS | {"decode_context_length_buckets": contexts}
    rig = make_rig(tmp_path, neuron_config=settings)

    actual = rig.teacher_forced(PROMPT, FORCED, chunks=chunks)

    expected = reference_logits(reference, PROMPT + FORCED, last=len(FORCED) + 1)
    assert relative_error(actual, expected) < BUDGET


def test_batch_mates_of_other_lengths_change_nothing(tmp_path: Path) -> None:
    save_llama(tmp_path)
    prompts = [PROMPT, PROMPT[:1], PROMPT[:7]]
    alone = [make_rig(tmp_path, neuron_config=BUCKETS).teacher_forced(p, FORCED) for p in prompts]
    rig = make_rig(tmp_path, neuron_config=BUCKETS)
    requests = [rig.request(prompt, room=len(FORCED)) for prompt in prompts]
    rows = [rig.run(requests, [len(p) for p in prompts])]
    for token in FORCED:
        for request in requests:
            request.token_ids.append(token)
        rows.append(rig.run(requests, [1] * len(requests)))

    for request, expected in zip(requests, alone, strict=True):
        together = torch.stack([step[request.request_id] for step in rows])
        assert relative_error(together, expected) < BUDGET


def test_a_step_may_mix_a_chunk_of_prompt_with_decodes(tmp_path: Path) -> None:
    save_llama(tmp_path)
    expected = make_rig(tmp_path).teacher_forced(PROMPT, FORCED[:2])
    late = make_rig(tmp_path).teacher_forced(PROMPT[:6], [])
    rig = make_rig(tmp_path)
    first, second = rig.request(PROMPT, room=2), rig.request(PROMPT[:6])
    rows = [rig.run([first], [len(PROMPT)])]
    for token, chunk in zip(FORCED[:2], [4, 2], strict=True):
        first.token_ids.append(token)
        rows.append(rig.run([first, second], [1, chunk]))

    assert second.request_id not in rows[1]
    together = torch.stack([step[first.request_id] for step in rows])
    assert relative_error(together, expected) < BUDGET
    assert relative_error(rows[2][second.request_id], late[0]) < BUDGET


def test_poisoned_padding_rows_reach_no_real_row(tmp_path: Path) -> None:
    reference = save_llama(tmp_path)
    kernels = PoisoningKernels(StrictKernels(TorchCpuKernels()))
    padded = BUCKETS | {"num_seqs_buckets": [4]}
    rig = make_rig(tmp_path, neuron_config=padded, kernels=kernels)

    actual = rig.teacher_forced(PROMPT[:9], FORCED, chunks=[4, 5])

    expected = reference_logits(reference, PROMPT[:9] + FORCED, last=len(FORCED) + 1)
    assert relative_error(actual, expected) < BUDGET


def test_only_the_slots_of_real_tokens_are_written(tmp_path: Path) -> None:
    save_llama(tmp_path)
    rig = make_rig(tmp_path, neuron_config=BUCKETS, num_blocks=9, fill=-77.0)
    request = rig.request(PROMPT, room=1)
    rig.run([request], [len(PROMPT)])

    for caches in rig.caches.values():
        for cache in caches:
            untouched = cache == -77.0
            for index, block in enumerate(request.block_ids):
                filled = min(max(len(PROMPT) - index * rig.block_size, 0), rig.block_size)
                assert not untouched[block, :, :filled].any()
                assert untouched[block, :, filled:].all()
            others = [b for b in range(9) if b not in request.block_ids]
            assert untouched[others].all()


SIX_HEADS = ("awkward", "biased", "multi_head", "wide_head")
DEGREES = [(name, tp) for name in SIX_HEADS for tp in (2, 3, 6)]
DEGREES += [("multi_query", 2), ("multi_query", 6)]
DEGREES += [("eight_heads", tp) for tp in (2, 4, 8)]
DEGREES += [("twelve_heads", tp) for tp in (2, 3, 4, 6, 12)]


@pytest.mark.parametrize(("name", "tp"), DEGREES)
def test_every_tensor_parallel_degree_equals_one_rank(tmp_path: Path, name: str, tp: int) -> None:
    reference = save_llama(tmp_path, name)

    def one_rank(collectives: object) -> torch.Tensor:
        rig = make_rig(tmp_path, neuron_config=BUCKETS, collectives=collectives)
        return rig.teacher_forced(PROMPT, FORCED, chunks=[4, 7])

    ranks = LocalWorld(tp).run(one_rank)

    expected = reference_logits(reference, PROMPT + FORCED, last=len(FORCED) + 1)
    for actual in ranks:
        assert relative_error(actual, expected) < BUDGET


@pytest.mark.parametrize("tp", [4, 5, 7, 8])
def test_a_degree_that_does_not_divide_the_heads_names_those_that_do(
    tmp_path: Path, tp: int
) -> None:
    save_llama(tmp_path)
    with pytest.raises(Exception, match=r"6 query heads; choose one of \[1, 2, 3, 6\]"):
        LocalWorld(tp).run(lambda collectives: make_rig(tmp_path, collectives=collectives))


def test_prefill_reduce_scatters_and_decode_all_reduces(tmp_path: Path) -> None:
    save_llama(tmp_path)
    world = LocalWorld(2)
    world.run(
        lambda collectives: make_rig(tmp_path, collectives=collectives).teacher_forced(PROMPT, [1])
    )

    layers = AWKWARD["num_hidden_layers"]
    ops = [call.operation for call in world.calls[0]]
    # Embedding, attention and MLP of each layer leave by one, and gathers open each plus the head.
    assert ops.count("reduce_scatter") == 1 + 2 * layers
    assert ops.count("all_reduce") == 1 + 2 * layers
    assert ops.count("all_gather") == (2 * layers + 1) + 1 + 1


def test_greedy_text_equals_transformers_for_64_tokens(tmp_path: Path) -> None:
    from trnport import bootstrap

    reference = save_llama(tmp_path)
    ids = torch.tensor([PROMPT])
    # Without a mask, generate() takes a prompt's token 0 for padding.
    mask = torch.ones_like(ids)
    output = reference.generate(ids, attention_mask=mask, max_new_tokens=64, do_sample=False)
    expected = output[0, len(PROMPT) :].tolist()
    session = bootstrap.open_session(
        tmp_path, dtype=torch.float32, max_model_len=128, neuron_config={}, block_size=16
    )

    assert session.generate([PROMPT], max_tokens=64) == [expected]
