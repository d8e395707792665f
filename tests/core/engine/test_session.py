# SPDX-License-Identifier: Apache-2.0
"""The small engine: admission, chunks, stops, aborts, and blocks that always come back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trnport.adapters.eager import EagerCompiler
from trnport.core.config import NeuronConfig
from trnport.core.engine.buckets import Buckets
from trnport.core.engine.executor import StepExecutor
from trnport.core.engine.inputs import InputBuilder
from trnport.core.engine.session import Limits, Session
from trnport.core.errors import RequestError
from trnport.core.metadata import ModelOutput

V = 50
BLOCK = 4


class CountingModel:
    """Says the successor of the last token, and checks what it is given."""

    vocab_size = V

    def __call__(self, **inputs: Any) -> ModelOutput:
        metadata = inputs["attn_metadata"]["layer"]
        owned = metadata.slot_mapping[metadata.slot_mapping >= 0]
        assert owned.unique().numel() == owned.numel(), "two tokens share a slot"
        assert (owned >= BLOCK).all(), "the null block is written"
        last = inputs["input_ids"].index_select(0, inputs["sampling_positions"])
        return ModelOutput(logits=torch.nn.functional.one_hot((last + 1) % V, V).float())


def session(num_blocks: int = 20, max_num_seqs: int = 3, chunk: int = 6) -> Session:
    config = NeuronConfig.from_dict(
        {}, max_model_len=24, max_num_seqs=max_num_seqs, max_num_batched_tokens=chunk
    )
    inputs = InputBuilder(Buckets.from_config(config, max_model_len=24), ("layer",), BLOCK)
    executor = StepExecutor(CountingModel(), EagerCompiler(), inputs)  # type: ignore[arg-type]
    executor.warm_up()
    return Session(executor, Limits(24, max_num_seqs, chunk, BLOCK, num_blocks, V))


def successors(prompt: list[int], count: int) -> list[int]:
    return [(prompt[-1] + 1 + i) % V for i in range(count)]


def test_prompts_of_any_length_generate_side_by_side() -> None:
    prompts = [[1], [2] * 5, [3] * 6, [4] * 7, [5] * 19]
    engine = session()
    assert engine.generate(prompts, max_tokens=5) == [successors(p, 5) for p in prompts]
    assert engine.num_free_blocks == 19
    assert not engine.has_work


def test_a_stop_id_ends_one_request_only() -> None:
    assert session().generate([[1], [7]], max_tokens=9, stop_ids=[4]) == [
        [2, 3, 4],
        successors([7], 9),
    ]


def test_requests_wait_for_blocks_in_order_of_arrival() -> None:
    engine = session(num_blocks=7)  # six to hand out; each request reserves four
    ids = [engine.add([i] * 10, max_tokens=4) for i in (1, 2)]
    order = []
    while engine.has_work:
        order += [new.request_id for new in engine.step()]
    assert order == [ids[0]] * 4 + [ids[1]] * 4


def test_an_abort_frees_blocks_in_every_state_and_twice() -> None:
    engine = session(max_num_seqs=2)
    decoding, chunked, queued = (engine.add([9] * n, max_tokens=5) for n in (3, 19, 3))
    engine.step()
    for request_id in (decoding, chunked, queued, queued, decoding, "never seen"):
        engine.abort(request_id)
    assert not engine.has_work
    assert engine.num_free_blocks == 19
    assert engine.generate([[1]], max_tokens=2) == [[2, 3]]


def test_a_stream_yields_as_it_goes() -> None:
    stream = session().stream([1], max_tokens=3)
    assert next(stream) == 2
    assert list(stream) == [3, 4]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 1, "the prompt is empty"),
        ([1, V], 1, f"token id {V} is outside the vocabulary of {V}"),
        ([-1], 1, "token id -1"),
        ([1], 0, "max_tokens=0"),
        ([1] * 24, 1, "24 prompt tokens and max_tokens=1 make 25, over max_model_len=24"),
    ],
)
def test_a_bad_request_is_refused_and_the_engine_lives(
    prompt: list[int], max_tokens: int, message: str
) -> None:
    engine = session()
    with pytest.raises(RequestError, match=message):
        engine.add(prompt, max_tokens=max_tokens)
    assert engine.generate([[1]], max_tokens=2) == [[2, 3]]


def test_a_request_at_the_limit_is_served() -> None:
    prompt = [1] * 23
    assert session().generate([prompt], max_tokens=1) == [[2]]


def test_a_request_that_no_cache_can_hold_is_refused() -> None:
    with pytest.raises(RequestError, match="20 tokens need 5 KV blocks and there are 3"):
        session(num_blocks=4).add([1] * 10, max_tokens=10)


@given(
    st.lists(st.tuples(st.integers(1, 18), st.integers(1, 6)), min_size=1, max_size=6),
    st.integers(7, 20),
    st.integers(1, 4),
    st.integers(2, 7),
)
def test_any_mix_finishes_with_every_block_back(
    requests: list[tuple[int, int]], num_blocks: int, max_num_seqs: int, chunk: int
) -> None:
    engine = session(num_blocks, max_num_seqs, chunk)
    expected = {
        engine.add([n] * n, max_tokens=count): successors([n], count) for n, count in requests
    }
    got: dict[str, list[int]] = {request_id: [] for request_id in expected}
    for _ in range(500):
        if not engine.has_work:
            break
        for new in engine.step():
            got[new.request_id].append(new.token_id)
    assert got == expected
    assert engine.num_free_blocks == num_blocks - 1
