# SPDX-License-Identifier: Apache-2.0
"""Block tables hold the blocks that a query may read, and windowed ones little else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import make_rig
from tests.zoo_windows import save_window_model
from trnport.adapters.fake import RecordingKernels
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.engine.batch import Request
from trnport.core.engine.tables import TableKind, block_tables

CONTEXT = 60


@given(
    block_size=st.integers(1, 9),
    window=st.none() | st.integers(1, 70),
    positions=st.lists(st.integers(0, CONTEXT - 1), min_size=1, max_size=4),
    group=st.integers(0, 2),
)
def test_every_readable_position_is_in_its_column(
    block_size: int, window: int | None, positions: list[int], group: int
) -> None:
    kind, owned = TableKind(group, window), -(-CONTEXT // block_size)
    requests = [
        Request(
            f"r{row}", [0], 1,
            block_ids=list(range(1, owned + 1)),
            further_block_ids=[[100 * g + b for b in range(1, owned + 1)] for g in (1, 2)],
        )
        for row, _ in enumerate(positions)
    ]  # fmt: skip
    table, offsets = block_tables(
        kind, requests, positions, context=CONTEXT, rows=5, block_size=block_size
    )
    assert table.shape == (5, kind.columns(CONTEXT, block_size))
    assert (table[len(positions) :] == -1).all() and not any(offsets[len(positions) :])
    for row, position in enumerate(positions):
        first = 0 if window is None else max(0, position - window + 1)
        for readable in range(first, position + 1):
            column, rest = divmod(readable - offsets[row], block_size)
            assert rest == readable % block_size
            assert table[row, column] == 100 * group + 1 + readable // block_size


@pytest.mark.parametrize(
    ("window", "block_size", "columns"),
    [(1, 4, 1), (2, 4, 2), (5, 4, 2), (6, 4, 3), (128, 32, 5), (129, 32, 5), (1000, 4, 15)],
)
def test_columns_of_a_window(window: int, block_size: int, columns: int) -> None:
    assert TableKind(0, window).columns(CONTEXT if window < 100 else 600, block_size) == (
        columns if window < 1000 else 150
    )


def test_blocks_that_left_the_window_are_unowned() -> None:
    request = Request("r", [0], 1, block_ids=[0, 0, 5, 6])
    table, _ = block_tables(TableKind(), [request], [15], context=20, rows=1, block_size=4)
    assert table.tolist() == [[-1, -1, 5, 6, -1]]


@pytest.mark.parametrize("contexts", [None, [4, 8, 32]])
def test_windowed_layers_read_their_window_and_the_others_everything(
    tmp_path: Path, contexts: list[int] | None
) -> None:
    save_window_model(tmp_path, "qwen3", "mixed_w7")  # sliding, full, sliding; blocks of 4
    kernels = RecordingKernels(TorchCpuKernels())
    rig = make_rig(
        tmp_path, neuron_config={"decode_context_length_buckets": contexts}, kernels=kernels
    )
    rig.teacher_forced(list(range(30)), [1, 2, 3], chunks=[20, 10])

    seen = {
        operation: [
            (call.arguments["sliding_window"], call.arguments["block_table"].shape[1])
            for call in kernels.calls
            if call.operator == operation
        ]
        for operation in ("prefill_attention_with_prior", "decode_attention")
    }
    prior, decode = (8, 8) if contexts else (16, 16)
    assert seen["prefill_attention_with_prior"] == [(7, 3), (None, prior), (7, 3)]
    expected = [(7, 3), (None, decode), (7, 3)] * 2
    assert seen["decode_attention"] == [*expected, (7, 3), (None, 16), (7, 3)]
