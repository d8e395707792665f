# SPDX-License-Identifier: Apache-2.0
"""What observers hear equals what was scheduled, and padding only ever adds."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.core.engine.test_session import BLOCK, CountingModel
from trnport.adapters.eager import EagerCompiler
from trnport.adapters.fake import RecordingObserver
from trnport.core.config import NeuronConfig
from trnport.core.engine.batch import BatchState, Request
from trnport.core.engine.buckets import Buckets
from trnport.core.engine.executor import StepExecutor
from trnport.core.engine.inputs import InputBuilder
from trnport.core.engine.observer import Execution, Observers, SilentObserver, StepObserver
from trnport.core.errors import UnseenSignatureError

LIMIT = 24
BUCKETS = {
    "num_batched_tokens_buckets": [2, 7, LIMIT],
    "num_seqs_buckets": [1, 3, 4],
    "decode_context_length_buckets": [5, 11],
}


def executor(observer: StepObserver, tp: int = 1) -> StepExecutor:
    config = NeuronConfig.from_dict(
        BUCKETS, max_model_len=LIMIT, max_num_seqs=4, max_num_batched_tokens=LIMIT
    )
    buckets = Buckets.from_config(config, max_model_len=LIMIT)
    inputs = InputBuilder(buckets, ("layer",), BLOCK, tp)
    return StepExecutor(CountingModel(), EagerCompiler(), inputs, observer=observer)  # type: ignore[arg-type]


def request(name: str, tokens: int) -> Request:
    first = 1 + 10 * int(name)
    return Request(name, [1] * tokens, tokens, block_ids=list(range(first, first + 7)))


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_sums_match_the_schedule_and_padding_only_adds(chunks: list[list[int]], tp: int) -> None:
    """Requests of several chunks each run side by side, one chunk a step."""
    observer, batch = RecordingObserver(), BatchState()
    runner = executor(observer, tp)
    runner.warm_up()
    for name, counts in enumerate(chunks):
        batch.add(request(str(name), sum(counts)))
    expected: Counter[tuple[str, str]] = Counter()
    while pending := {str(i): counts.pop(0) for i, counts in enumerate(chunks) if counts}:
        for name, count in pending.items():
            start = batch[name].num_computed_tokens
            decodes = count == 1 and start > 0
            phase = "decode" if decodes else "prefill"
            expected[phase, "tokens"] += count
            expected[phase, "seqs"] += 1
            expected[phase, "context"] += start + decodes
            expected[name, "tokens"] += count
        runner.execute(batch, pending)
    heard: Counter[tuple[str, str]] = Counter()
    for run in observer.executions:
        heard[run.phase, "tokens"] += run.tokens
        heard[run.phase, "seqs"] += run.seqs
        heard[run.phase, "context"] += run.context
        if run.phase == "prefill":
            heard[run.request_ids[0], "tokens"] += run.tokens
            assert run.padded_tokens % tp == 0
        else:
            for name in run.request_ids:
                heard[name, "tokens"] += 1
        assert run.padded_tokens >= run.tokens
        assert run.padded_seqs >= run.seqs
        assert run.padded_context >= run.context
        assert run.name in runner.program_names
    assert heard == +expected
    assert len(observer.seconds) == len(observer.executions)


def test_a_run_is_described_in_full() -> None:
    observer, batch = RecordingObserver(), BatchState()
    runner = executor(observer)
    runner.warm_up()
    batch.add(request("0", 6))
    batch.add(request("1", 9))
    runner.execute(batch, {"0": 5, "1": 8})
    runner.execute(batch, {"0": 1, "1": 1})
    assert observer.executions == [
        Execution("prefill_s7", "prefill", ("0",), 5, 7, 1, 0, 0),
        Execution("prefill_s24", "prefill", ("1",), 8, 24, 1, 0, 0),
        Execution("decode_b3_ctx11", "decode", ("0", "1"), 2, 3, 3, 6 + 9, 33),
    ]


def test_a_later_chunk_counts_its_cached_prefix() -> None:
    observer, batch = RecordingObserver(), BatchState()
    runner = executor(observer)
    runner.warm_up()
    batch.add(request("0", 9))
    runner.execute(batch, {"0": 6})
    runner.execute(batch, {"0": 3})
    assert observer.executions[1] == Execution(
        "prefill_s7_ctx11", "prefill", ("0",), 3, 7, 1, 6, 11
    )


def test_warm_up_reports_each_program_once_and_no_run() -> None:
    observer = RecordingObserver()
    runner = executor(observer)
    runner.warm_up()
    assert [name for name, _ in observer.compilations] == runner.program_names
    assert all(seconds > 0 for _, seconds in observer.compilations)
    assert observer.executions == []


def test_without_warm_up_the_first_run_is_both() -> None:
    observer, batch = RecordingObserver(), BatchState()
    batch.add(request("0", 6))
    executor(observer).execute(batch, {"0": 5})
    assert [name for name, _ in observer.compilations] == ["prefill_s7"]
    assert [run.name for run in observer.executions] == ["prefill_s7"]


def test_a_refused_program_is_not_reported() -> None:
    observer, batch = RecordingObserver(), BatchState()
    runner = executor(observer)
    runner._programs._compiler.seal()
    batch.add(request("0", 6))
    with pytest.raises(UnseenSignatureError):
        runner.execute(batch, {"0": 5})
    assert (observer.compilations, observer.executions) == ([], [])


def test_several_observers_hear_the_same() -> None:
    first, second = RecordingObserver(), RecordingObserver()
    executor(Observers((first, SilentObserver(), second))).warm_up()
    assert first.compilations == second.compilations != []


def test_nothing_an_observer_hears_is_a_token_or_a_tensor() -> None:
    types = {field.type for field in attrs.fields(attrs.resolve_types(Execution))}
    assert torch.Tensor not in types
    assert "token_ids" not in {field.name for field in attrs.fields(Execution)}
