# SPDX-License-Identifier: Apache-2.0
"""A decode step's tensors, after any history, are what a plain loop makes of the requests."""

from __future__ import annotations

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trnport.core.engine.batch import BatchState, Request, Work
from trnport.core.engine.buckets import Buckets
from trnport.core.engine.inputs import InputBuilder
from trnport.core.engine.packed import bits64, float32, int32, int64
from trnport.core.engine.result import Piece, StepResult
from trnport.core.engine.sampling import SamplingParams
from trnport.core.engine.sampling_inputs import SamplingInputBuilder
from trnport.core.engine.tables import TableKind
from trnport.core.functional.random import mix, signed, split
from trnport.core.metadata import AttentionMetadata, ModelOutput, StepInput

SIZE, LIMIT, VOCAB = 3, 25, 50
KINDS = {"whole": TableKind(0), "window": TableKind(1, 5), "short": TableKind(0, 2)}
BUILDER = InputBuilder(
    Buckets([LIMIT], [1, 3, 6], [7, LIMIT]),
    ("whole", "window", "again", "short"),
    SIZE,
    kinds=KINDS,
)
SAMPLING = SamplingInputBuilder(VOCAB, masked=True)


@attrs.define
class Known:
    """A request in lists of its own, and its twin in the engine."""

    tokens: list[int]
    groups: list[list[int]]
    stream: int
    computed: int
    twin: Request

    def blocks(self, group: int, column: int) -> int:
        owned = self.groups[group]
        return owned[column] if column < len(owned) and owned[column] != 0 else -1


blocks = st.lists(st.integers(0, 2**31 - 1), max_size=4)
steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "grow", "grow", "preempt", "remove", "decode", "decode", "decode"]),
        st.integers(0, 5),
        st.tuples(blocks, blocks),
        st.integers(0, 2**64 - 1),
    ),
    max_size=25,
)


def apply(
    batch: dict[int, Known], kind: str, who: int, groups: tuple[list[int], ...], n: int
) -> None:
    """One change, to the lists and to the engine's request."""
    known = batch.get(who)
    if kind == "add" and known is None:
        tokens = [1 + n % 49] * (2 + n % 5)
        twin = Request(str(who), list(tokens), 2, random_stream=n, num_computed_tokens=1)
        twin.sampling = SamplingParams(temperature=n % 3, top_k=n % 60, top_p=0.5)
        twin.replace_blocks(groups)
        batch[who] = Known(tokens, [list(ids) for ids in groups], n, 1, twin)
    elif kind == "grow" and known is not None:
        for group, ids in enumerate(groups):
            known.groups[group] += ids
            known.twin.blocks_of(group).extend(ids)
        known.tokens.append(n % VOCAB)
        known.twin.token_ids.append(n % VOCAB)
    elif kind == "preempt" and known is not None:
        known.groups, known.computed = [list(ids) for ids in groups], 1
        known.twin.replace_blocks(groups)
        known.twin.num_computed_tokens = 1
    elif kind == "remove":
        batch.pop(who, None)


def tensors_of(step: StepInput) -> list[Tensor]:
    """Every tensor of a step that is made for it alone."""
    found = [step.input_ids, step.positions, step.sampling_positions, *(step.sampling or ())]
    for metadata in step.attn_metadata.values():
        found += [
            value for value in attrs.astuple(metadata, recurse=False) if torch.is_tensor(value)
        ]
    return found


def check_metadata(
    metadata: AttentionMetadata, kind: TableKind, rows: list[Known], padded: int
) -> None:
    group, window = kind
    columns = metadata.max_blocks_per_seq
    assert metadata.block_table_tensor.shape == (padded, columns)
    table, slots, offsets = [], [], []
    for known in rows:
        position = known.computed
        first = 0 if window is None else max(0, position - window + 1) // SIZE
        table.append([known.blocks(group, first + column) for column in range(columns)])
        offsets.append(first * SIZE)
        block = known.blocks(group, position // SIZE)
        slots.append(-1 if block == -1 else block * SIZE + position % SIZE)
    padding = padded - len(rows)
    assert metadata.block_table_tensor.tolist() == table + [[-1] * columns] * padding
    assert metadata.slot_mapping.tolist() == slots + [-1] * padding
    assert metadata.swa_kv_pos_offset.tolist() == offsets + [0] * padding
    assert metadata.seq_lens.tolist() == [k.computed + 1 for k in rows] + [1] * padding
    assert metadata.cached_seq_len.tolist() == [[max(k.computed for k in rows)]]
    dtypes = [t.dtype for t in (metadata.block_table_tensor, metadata.slot_mapping)]
    assert dtypes == [torch.int32, torch.int64]


def check(step: StepInput, rows: list[Known]) -> None:
    padded = next(size for size in (1, 3, 6) if size >= len(rows))
    padding = padded - len(rows)
    assert step.input_ids.tolist() == [k.tokens[k.computed] for k in rows] + [0] * padding
    assert step.positions.tolist() == [k.computed for k in rows] + [0] * padding
    assert step.sampling_positions.tolist() == list(range(padded))
    for name, metadata in step.attn_metadata.items():
        check_metadata(metadata, KINDS.get(name, TableKind()), rows, padded)
    assert step.attn_metadata["whole"] is step.attn_metadata["again"]
    assert step.sampling is not None and step.logit_mask is not None
    generated = [len(k.tokens) - 2 for k in rows]
    keys = [signed(mix(split(k.stream, n))) for k, n in zip(rows, generated, strict=True)]
    assert step.sampling.random_keys.tolist() == keys + [0] * padding
    params = [k.twin.sampling for k in rows]
    expected = [(p.top_k if 0 < p.top_k < VOCAB else VOCAB, p.top_p, p.temperature) for p in params]
    rest = [(1.0, 1.0, 0.0)] * padding
    assert list(map(tuple, step.sampling.sampler_params.tolist())) == expected + rest
    assert step.logit_mask.shape == (padded, VOCAB) and bool(step.logit_mask.all())


@given(steps)
@settings(max_examples=150)
def test_a_step_after_any_history_equals_one_built_from_scratch(
    history: list[tuple[str, int, tuple[list[int], list[int]], int]],
) -> None:
    batch: dict[int, Known] = {}
    for kind, who, groups, number in history:
        if kind != "decode":
            apply(batch, kind, who, groups, number)
            continue
        rows = [k for k in batch.values() if k.computed < min(len(k.tokens), LIMIT - 1)]
        if not rows:
            continue
        requests = [known.twin for known in rows]
        step = SAMPLING.add(BUILDER.decode(requests), requests, {})
        check(step, rows)
        for tensor in tensors_of(step):
            tensor.fill_(77)  # as if a program or device had garbled what it was lent
        for known in rows:
            known.computed += 1
            known.twin.num_computed_tokens += 1


def test_a_step_keeps_its_tensors_while_requests_go_on() -> None:
    request = Request("r", [5, 6, 7, 8], 2, block_ids=[4, 9], num_computed_tokens=3)
    step = BUILDER.decode([request])
    request.block_ids[0], request.token_ids[3] = 1, 1
    request.block_ids.extend([2, 3])
    request.replace_blocks([[7]])
    assert step.attn_metadata["whole"].block_table_tensor.tolist()[0][:3] == [4, 9, -1]
    assert (step.input_ids.tolist(), step.attn_metadata["whole"].slot_mapping.tolist()) == (
        [8],
        [27],
    )


@given(st.data())
def test_rows_of_several_programs_come_in_the_order_of_the_batch(data: st.DataObject) -> None:
    order = [f"r{i}" for i in range(data.draw(st.integers(1, 8)))]
    shuffled = data.draw(st.permutations(order))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(order)), max_size=3)))
    logits = {name: torch.randn(3) for name in order}
    pieces, expected = [], []
    for first, last in zip([0, *cuts], [*cuts, len(order)], strict=True):
        names = shuffled[first:last]
        wanted = [row for row, _ in enumerate(names) if data.draw(st.booleans())]
        if not wanted:
            continue
        padding = torch.full((2, 3), torch.nan)
        rows = torch.cat([torch.stack([logits[name] for name in names]), padding])
        output = ModelOutput(rows, torch.tensor([int(name[1:]) for name in names] + [99, 99]))
        pieces.append(Piece.of([names[row] for row in wanted], wanted, output))
        expected += [names[row] for row in wanted]
    if not pieces:
        return
    result = StepResult.collect(order, pieces, {})
    assert result.request_ids == sorted(expected)
    assert result.token_ids is not None
    assert result.token_ids.tolist() == [int(name[1:]) for name in result.request_ids]
    assert torch.equal(
        result.require_logits(), torch.stack([logits[name] for name in result.request_ids])
    )


def test_the_logits_of_one_program_are_not_copied() -> None:
    output = ModelOutput(torch.randn(4, 5))
    result = StepResult.collect("abc", [Piece.of(["a", "b"], [0, 1], output)], {})
    assert output.logits is not None
    assert result.require_logits().data_ptr() == output.logits.data_ptr()


def test_packed_numbers_are_the_numbers() -> None:
    assert int32([-1, 2**31 - 1]).tolist() == [-1, 2**31 - 1]
    assert int64(iter([-(2**63), 5])).tolist() == [-(2**63), 5]
    assert bits64([0, 2**64 - 1]).tolist() == [0, -1]
    assert float32([0.5, 1e39]).tolist() == [0.5, float("inf")]
    for too_large in (lambda: int32([2**31]), lambda: int64([2**63]), lambda: bits64([-1])):
        with pytest.raises(OverflowError):
            too_large()


def test_work_is_split_in_the_order_of_the_schedule() -> None:
    from trnport.core.engine.batch import split_by_phase

    batch = BatchState()
    for name, computed in (("a", 3), ("b", 0), ("c", 1), ("d", 2)):
        batch.add(Request(name, [1] * 4, 4, num_computed_tokens=computed))
    prefills, decodes = split_by_phase(batch, {"d": 2, "c": 1, "b": 1, "a": 1})
    assert prefills == [Work(batch["d"], 2), Work(batch["b"], 1)]
    assert decodes == [Work(batch["c"], 1), Work(batch["a"], 1)]
