# SPDX-License-Identifier: Apache-2.0
"""Hidden states that leave the engine, and the program that turns rows of them into logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.harness import Rig, make_rig, reference_logits, relative_error
from tests.zoo import save_llama
from trnport.adapters.eager import EagerCompiler
from trnport.adapters.fake import PoisoningKernels, RecordingCompiler
from trnport.adapters.local import LocalWorld
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.engine.buckets import Buckets
from trnport.core.engine.features import Features
from trnport.core.engine.hidden import HeadProgram
from trnport.core.engine.programs import Programs

PROMPT = [(31 * i + 7) % 131 for i in range(37)]
BUCKETS = {"num_batched_tokens_buckets": [3, 11, 64], "num_seqs_buckets": [1, 4]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hidden")
    save_llama(path)
    return path


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    """Logits of every position of PROMPT, from Transformers."""
    model = save_llama(tmp_path_factory.mktemp("reference"))
    return reference_logits(model, PROMPT, last=len(PROMPT))


def prompt_logits(rig: Rig, chunks: list[int], until: int = len(PROMPT)) -> Tensor:
    """Logits of the first ``until`` positions of PROMPT, computed in chunks."""
    request = rig.request(PROMPT)
    request.prefill_until = until
    mate = rig.request(PROMPT[:5], room=len(chunks))
    rig.run([mate], [5])
    found = []
    for count in chunks:
        mate.token_ids.append(1)
        hidden = step(rig, [request, mate], [count, 1])
        assert mate.request_id not in hidden, "only who asks gets hidden states"
        if request.request_id in hidden:
            part = hidden[request.request_id]
            assert part.start == sum(len(rows) for rows in found)
            found.append(rig.executor.compute_logits(part.rows))
    return torch.cat(found)


def step(rig: Rig, requests: list[Any], counts: list[int]) -> Any:
    from trnport.core.engine.batch import BatchState

    batch = BatchState()
    for request in requests:
        batch.add(request)
    scheduled = {r.request_id: n for r, n in zip(requests, counts, strict=True)}
    return rig.executor.execute(batch, scheduled).hidden_states


@st.composite
def chunkings(draw: st.DrawFn) -> list[int]:
    chunks: list[int] = []
    while sum(chunks) < len(PROMPT):
        chunks.append(min(draw(st.integers(1, 12)), len(PROMPT) - sum(chunks)))
    return chunks


@given(chunks=chunkings())
def test_any_chunks_give_the_logits_of_transformers(
    folder: Path, expected: Tensor, chunks: list[int]
) -> None:
    rig = make_rig(folder, neuron_config=BUCKETS, kernels=PoisoningKernels(TorchCpuKernels()))
    assert relative_error(prompt_logits(rig, chunks), expected) < 1e-5


@pytest.mark.parametrize("tp", [2, 3])
def test_every_rank_has_all_rows(folder: Path, expected: Tensor, tp: int) -> None:
    def run(ranks: Any) -> Tensor:
        rig = make_rig(folder, neuron_config=BUCKETS, collectives=ranks, warm_up=True)
        return prompt_logits(rig, [11, 1, 25])

    for logits in LocalWorld(tp).run(run):
        assert relative_error(logits, expected) < 1e-5


def test_one_more_program_and_none_after_warm_up(folder: Path) -> None:
    compiler = RecordingCompiler(EagerCompiler())
    rig = make_rig(folder, neuron_config=BUCKETS, compiler=compiler, warm_up=True)
    compiled = compiler.compilation_count
    assert rig.executor.program_names[-1] == "lm_head_r64"
    assert len(rig.executor.program_names) == compiled
    prompt_logits(rig, [36, 1])
    assert compiler.compilation_count == compiled

    silent = RecordingCompiler(EagerCompiler())
    off = BUCKETS | {"enable_prompt_logprobs": False}
    make_rig(folder, neuron_config=off, compiler=silent, warm_up=True)
    assert silent.compilation_count == compiled - 1


def test_the_last_token_of_a_prompt_alone_is_a_decode_unless_its_state_is_needed(
    folder: Path,
) -> None:
    for until, last in [(len(PROMPT) - 1, "decode"), (len(PROMPT), "prefill")]:
        compiler = RecordingCompiler(EagerCompiler())
        rig = make_rig(folder, neuron_config=BUCKETS, compiler=compiler)
        request = rig.request(PROMPT)
        request.prefill_until = until
        step(rig, [request], [len(PROMPT) - 1])
        step(rig, [request], [1])
        assert [call.name.split("_")[0] for call in compiler.calls] == ["prefill", last]


def test_an_engine_that_embeds_has_prefill_programs_only(folder: Path) -> None:
    from trnport import bootstrap
    from trnport.core.config import NeuronConfig

    settings = NeuronConfig.from_dict(
        {}, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=64
    )
    model = make_rig(folder).model
    executor = bootstrap.build_executor(
        model, settings, block_size=4, max_model_len=64, features=Features(generates=False)
    )
    executor.warm_up()
    assert {name.split("_")[0] for name in executor.program_names} == {"prefill"}


class _Double:
    """An LM head that doubles, and counts its calls."""

    calls = 0

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        self.calls += 1
        assert hidden_states.shape == (4, 2)
        return 2 * hidden_states


@given(n=st.integers(1, 13))
def test_rows_of_any_number_go_through_one_shape(n: int) -> None:
    model = _Double()
    compiler = EagerCompiler()
    programs = Programs(model, compiler, Buckets((4,), (1,), (4,)))  # type: ignore[arg-type]
    head = HeadProgram(model, programs, rows=4)
    head(torch.zeros(1, 2))
    compiler.seal()
    hidden = torch.arange(2.0 * n).reshape(n, 2)
    assert torch.equal(head(hidden), 2 * hidden)
    assert model.calls == 1 + -(-n // 4)
