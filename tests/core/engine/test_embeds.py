# SPDX-License-Identifier: Apache-2.0
"""Prompts given as embeddings, against the same prompts as token ids."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.harness import Rig, make_rig, relative_error
from tests.zoo import save_llama
from trnport import bootstrap
from trnport.adapters.eager import EagerCompiler
from trnport.adapters.fake import RecordingCompiler
from trnport.adapters.local import LocalWorld
from trnport.core.config import NeuronConfig
from trnport.core.engine.embeds import PromptEmbeds, step_embeds
from trnport.core.engine.features import EmbedsSpec, Features

HIDDEN = 48
PROMPT = [(17 * i + 5) % 131 for i in range(23)]
FORCED = [7, 128, 3]
SPEC = EmbedsSpec(HIDDEN, torch.float32)
BUCKETS = {"num_batched_tokens_buckets": [3, 11, 64], "num_seqs_buckets": [1, 4]}
SETTINGS = NeuronConfig.from_dict(
    BUCKETS, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=64
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    """A folder, and the embedding table in it."""
    path = tmp_path_factory.mktemp("embeds")
    table = save_llama(path).get_input_embeddings().weight.detach()
    return path, table


@pytest.fixture(scope="module")
def expected(checkpoint: tuple[Path, Tensor]) -> Tensor:
    return make_rig(checkpoint[0], neuron_config=BUCKETS).teacher_forced(PROMPT, FORCED)


def embeds_rig(folder: Path, **options: Any) -> Rig:
    """A rig whose programs take embeddings."""
    rig = make_rig(folder, neuron_config=BUCKETS, **options)
    ranks = options.get("collectives")
    rig.executor = bootstrap.build_executor(
        rig.model,
        SETTINGS,
        block_size=rig.block_size,
        max_model_len=64,
        tp=ranks.size("tp") if ranks else 1,
        compiler=options.get("compiler"),
        features=Features(prompt_embeds=SPEC),
    )
    rig.executor.warm_up()
    return rig


def logits_of(rig: Rig, embeds: PromptEmbeds, ids: list[int], chunks: list[int]) -> Tensor:
    """As Rig.teacher_forced, for a prompt with embeddings beside a mate with token ids."""
    request, mate = rig.request(ids, room=len(FORCED)), rig.request(PROMPT[:4], room=40)
    request.prompt_embeds, request.prefill_until = embeds, embeds.end
    rig.run([mate], [4])
    rows: dict[str, Tensor] = {}
    for count in chunks:
        mate.token_ids.append(9)
        rows = rig.run([request, mate], [count, 1])
    found = [rows[request.request_id]]
    for token in FORCED:
        request.token_ids.append(token)
        mate.token_ids.append(9)
        found.append(rig.run([request, mate], [1, 1])[request.request_id])
    return torch.stack(found)


def given_as_embeds(table: Tensor, mask: list[bool]) -> tuple[PromptEmbeds, list[int]]:
    """PROMPT with embeddings where ``mask`` is False; what does not count is NaN or wrong."""
    is_id = torch.tensor(mask)
    values = torch.where(is_id[:, None], torch.full((HIDDEN,), math.nan), table[PROMPT])
    ids = [token if keep else (token + 1) % 131 for token, keep in zip(PROMPT, mask, strict=True)]
    return PromptEmbeds(values, is_id if any(mask) else None), ids


@st.composite
def chunkings(draw: st.DrawFn) -> list[int]:
    chunks: list[int] = []
    while sum(chunks) < len(PROMPT):
        chunks.append(min(draw(st.integers(1, 12)), len(PROMPT) - sum(chunks)))
    return chunks


@given(
    chunks=chunkings(),
    mask=st.one_of(
        st.just([False] * len(PROMPT)),
        st.lists(st.booleans(), min_size=len(PROMPT), max_size=len(PROMPT)),
    ),
)
def test_a_tokens_embedding_stands_for_it_over_any_chunks(
    checkpoint: tuple[Path, Tensor], expected: Tensor, chunks: list[int], mask: list[bool]
) -> None:
    embeds, ids = given_as_embeds(checkpoint[1], mask)
    found = logits_of(embeds_rig(checkpoint[0]), embeds, ids, chunks)
    assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize("tp", [2, 3])
def test_every_rank_takes_its_share_of_the_tokens(
    checkpoint: tuple[Path, Tensor], expected: Tensor, tp: int
) -> None:
    mask = [i % 3 == 0 for i in range(len(PROMPT))]
    embeds, ids = given_as_embeds(checkpoint[1], mask)

    def run(ranks: Any) -> Tensor:
        return logits_of(embeds_rig(checkpoint[0], collectives=ranks), embeds, ids, [11, 1, 8, 3])

    for logits in LocalWorld(tp).run(run):
        assert relative_error(logits, expected) < 1e-5


def test_prompts_without_embeddings_take_the_same_programs(
    checkpoint: tuple[Path, Tensor], expected: Tensor
) -> None:
    compiler = RecordingCompiler(EagerCompiler())
    rig = embeds_rig(checkpoint[0], compiler=compiler)
    compiled = compiler.compilation_count
    assert relative_error(rig.teacher_forced(PROMPT, FORCED), expected) < 1e-5
    embeds, ids = given_as_embeds(checkpoint[1], [False] * len(PROMPT))
    logits_of(rig, embeds, ids, [len(PROMPT)])
    assert compiler.compilation_count == compiled


def test_embeddings_may_cover_the_first_tokens_only(
    checkpoint: tuple[Path, Tensor], expected: Tensor
) -> None:
    # A preempted request comes back with its generated tokens, which have ids, in one prompt.
    embeds, ids = given_as_embeds(checkpoint[1], [False] * len(PROMPT))
    rig = embeds_rig(checkpoint[0])
    request = rig.request([*ids, *FORCED])
    request.prompt_embeds, request.prefill_until = embeds, embeds.end
    rig.run([request], [20])
    last = rig.run([request], [len(request.token_ids) - 20])[request.request_id]
    assert relative_error(last, expected[-1]) < 1e-5


def test_without_the_feature_there_are_no_tensors_and_with_it_always() -> None:
    device = torch.device("cpu")
    assert step_embeds(None, 4, device) == (None, None)
    embeds, mask = step_embeds(EmbedsSpec(3, torch.bfloat16), 4, device)
    assert embeds is not None and mask is not None
    assert embeds.shape == (4, 3) and embeds.dtype == torch.bfloat16 and mask.all()
