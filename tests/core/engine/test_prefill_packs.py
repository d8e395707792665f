# SPDX-License-Identifier: Apache-2.0
"""Prompts that share a prefill program, against the same prompts one at a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.compiling import unless_compiled
from tests.harness import Rig, make_rig, reference_logits
from tests.zoo import save_llama
from trnport.adapters.fake import PoisoningKernels, StrictKernels
from trnport.adapters.local import LocalWorld
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.config import NeuronConfig
from trnport.core.engine.buckets import Buckets
from trnport.core.engine.packing import PROGRAM_TOKENS, pack_prefills
from trnport.core.errors import ConfigError
from trnport.core.metadata import AttentionMetadata

LIMITS = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 200}


def works_of(counts: list[int]) -> list[Any]:
    return [SimpleNamespace(num_tokens=count) for count in counts]


def cost(packs: list[list[Any]], buckets: Buckets) -> int:
    sums = [sum(work.num_tokens for work in works) for works in packs]
    return sum(PROGRAM_TOKENS + buckets.prefill(tokens) for tokens in sums)


def cheapest(works: list[Any], buckets: Buckets) -> int:
    """By trying every way to cut the list."""
    if not works:
        return 0
    return min(
        cost([works[:end]], buckets) + cheapest(works[end:], buckets)
        for end in range(1, min(len(works), buckets.prefill_seqs) + 1)
        if sum(work.num_tokens for work in works[:end]) <= buckets.prefill_tokens[-1]
    )


@given(
    counts=st.lists(st.integers(1, 90), max_size=7),
    seqs=st.integers(1, 5),
    sizes=st.sets(st.integers(2, 400), max_size=4),
)
def test_packs_keep_the_order_fit_and_cost_least(counts, seqs, sizes) -> None:
    works = works_of(counts)
    buckets = Buckets(sorted({*sizes, 401}), [8], [500], prefill_seqs=seqs)
    packs = pack_prefills(works, buckets)
    assert [work for pack in packs for work in pack] == works
    assert all(1 <= len(pack) <= seqs for pack in packs)
    assert cost(packs, buckets) == cheapest(works, buckets)


def test_padding_outweighs_a_program() -> None:
    buckets = Buckets([144, 1152], [8], [2048], prefill_seqs=8)
    of = lambda count: [len(pack) for pack in pack_prefills(works_of([130] * count), buckets)]  # noqa: E731
    assert (of(1), of(3), of(7)) == ([1], [1, 1, 1], [7])


# --- a whole model ----------------------------------------------------------------------------


DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param({}, id="plain"),
        pytest.param(DYNAMIC, id="dynamic"),
    ],
)
def model(request, tmp_path_factory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("model")
    return folder, save_llama(folder, max_position_embeddings=10, **request.param)


def packed(folder: Path, **changes: Any) -> Rig:
    settings = {"max_prefills_per_batch": 3, **unless_compiled(num_batched_tokens_buckets=[8, 64])}
    return make_rig(folder, block_size=4, neuron_config=settings, **changes)


PROMPTS = [[3, 5, 7], list(range(2, 15)), [9], list(range(40, 57)), [8, 1]]


def last_rows(rig: Rig) -> list[Tensor]:
    """Five prompts: programs of at most three, and one prompt that waits for the next step."""
    requests = [rig.request(prompt) for prompt in PROMPTS]
    rows = rig.run(requests, [3, 6, 1, 17, 2])
    assert set(rows) == {requests[i].request_id for i in (0, 2, 3, 4)}
    rows |= rig.run([requests[1]], [7])
    return [rows[request.request_id] for request in requests]


def check(rows: list[Tensor], reference: Any) -> None:
    for got, prompt in zip(rows, PROMPTS, strict=True):
        want = reference_logits(reference, prompt, 1)[0]
        torch.testing.assert_close(got, want, rtol=0, atol=2e-5)


@pytest.mark.compiled
def test_prompts_together_give_what_transformers_gives_each(model) -> None:
    folder, reference = model
    check(last_rows(packed(folder)), reference)


def test_on_several_ranks(model) -> None:
    folder, reference = model
    for rows in LocalWorld(3).run(lambda ranks: last_rows(packed(folder, collectives=ranks))):
        check(rows, reference)


def test_padding_and_unused_cache_are_inert(model) -> None:
    folder, reference = model
    kernels = StrictKernels(PoisoningKernels(TorchCpuKernels()))
    check(last_rows(packed(folder, kernels=kernels)), reference)


# With dynamic RoPE, keys of another length are others, and prefixes are not shared.
@pytest.mark.parametrize("model", [{}], indirect=True, ids=["plain"])
def test_a_prefix_computed_in_the_same_program_counts_as_cached(model) -> None:
    """As vLLM schedules two new prompts that begin alike."""
    folder, reference = model
    rig = packed(folder)
    prompts = [list(range(5, 17)), [*range(5, 13), 30, 31, 32]]
    first, second = (rig.request(prompt) for prompt in prompts)
    second.block_ids[:2] = first.block_ids[:2]
    second.num_computed_tokens = 8
    rows = rig.run([first, second], [12, 3])
    for request, prompt in zip((first, second), prompts, strict=True):
        want = reference_logits(reference, prompt, 1)[0]
        torch.testing.assert_close(rows[request.request_id], want, rtol=0, atol=2e-5)


def test_every_reachable_program_is_warmed_up() -> None:
    """Chunks of other prompts may fill a program beyond the longest prompt."""
    buckets = Buckets([10, 30, 90], [4], [8, 20], prefill_seqs=3)
    warmed = set(buckets.all_prefill_signatures())
    reached = set()
    for cached in range(20):
        for tokens in range(1, 2 * 20 + 20 - cached + 1):
            reached.add(buckets.prefill_signature(tokens, cached))
    assert reached == warmed


def test_settings_know_the_limits() -> None:
    config = NeuronConfig.from_dict({"max_prefills_per_batch": 3}, **LIMITS)
    assert config.num_batched_tokens_buckets == (64, 128, 192)
    for value, said in (
        (0, "at least 1"),
        ("2", "integer"),
        (True, "integer"),
        (9, "max_num_seqs=8"),
    ):
        with pytest.raises(ConfigError, match=rf"max_prefills_per_batch={value!r}.*{said}"):
            NeuronConfig.from_dict({"max_prefills_per_batch": value}, **LIMITS)


def test_each_token_knows_the_length_of_its_own_sequence() -> None:
    metadata = AttentionMetadata(
        *[torch.empty(0)], slot_mapping=torch.full((7,), -1), cached_seq_len=torch.empty(0),
        seq_lens=torch.tensor([30, 40, 1]), max_query_len=7, block_size=4, max_blocks_per_seq=1,
        decode_token_threshold=1, kv_segment_size=0, swa_kv_pos_offset=torch.empty(0),
        query_start_loc=torch.tensor([0, 2, 5, 5]),
    )  # fmt: skip
    assert metadata.token_seq_lens.tolist()[:5] == [30, 30, 40, 40, 40]
