# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens survive any schedule while blocks behind the window are freed and poisoned.

Hypothesis plays the scheduler and the block manager of a model with full and windowed layers:
every group of layers has its own tables, all from one small pool in shared memory. A block that
nobody owns any more is filled with NaN at once. Requests may start on another's blocks, of which
the windowed groups have only the last ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import attrs
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.harness import Rig, make_rig
from tests.zoo_windows import FULL, SLIDING, save_window_model
from trnport.adapters.eager import EagerCompiler
from trnport.adapters.fake import RecordingCompiler
from trnport.core.engine.batch import Request
from trnport.core.kv import KVGroups

BLOCK = 3
LIMIT = 44
OUTPUT = 5
NUM_BLOCKS = 90
WINDOWS = {"below a block": 2, "no multiple": 7, "two blocks": 6}
BUCKET_SETS = [
    {"num_batched_tokens_buckets": [LIMIT], "num_seqs_buckets": [3]},
    {
        "num_batched_tokens_buckets": [2, 5, 9, LIMIT],
        "num_seqs_buckets": [1, 3],
        "decode_context_length_buckets": [4, 10, 21],
    },
    {
        "num_batched_tokens_buckets": [5, 14, LIMIT],
        "num_seqs_buckets": [3],
        "decode_context_length_buckets": [10],
        "max_prefills_per_batch": 3,
    },
]
PROMPTS = [
    [7],
    [11, 3, 5, 90, 2, 61, 8, 5, 5],
    [11, 3, 5, 90, 2, 61, 14, 3, 3, 8, 100],
    [(13 * i + 1) % 131 for i in range(29)],
    [(13 * i + 1) % 131 for i in range(20)] + [4, 4, 4],
]
SIZES = {"hidden_size": 24, "intermediate_size": 13, "layer_types": [FULL, SLIDING, SLIDING]}


@cache
def reference(window: int) -> tuple[Path, torch.nn.Module]:
    directory = Path(mkdtemp())
    sizes = {**SIZES, "num_hidden_layers": 3, "sliding_window": window}
    return directory, save_window_model(directory, "qwen3", "mixed_w3", **sizes)


@cache
def rig(window: int, buckets: int) -> Rig:
    return make_rig(
        reference(window)[0],
        max_model_len=LIMIT,
        max_num_seqs=3,
        block_size=BLOCK,
        num_blocks=NUM_BLOCKS,
        neuron_config=BUCKET_SETS[buckets],
        compiler=RecordingCompiler(EagerCompiler()),
        warm_up=True,
        by_window=True,
    )


@cache
def alone(window: int, prompt: int) -> list[int]:
    """What Transformers generates, without a cache."""
    model, tokens = reference(window)[1], list(PROMPTS[prompt])
    for _ in range(OUTPUT):
        with torch.inference_mode():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[-OUTPUT:]


class Memory:
    """One pool of blocks with owners, which poisons what nobody owns."""

    def __init__(self, engine: Rig) -> None:
        self.caches = [cache for pair in engine.caches.values() for cache in pair]
        self.groups = KVGroups.by_window(engine.model.get_kv_spec()).groups
        self.owners: Counter[int] = Counter()
        self.peak = 0
        for cache_ in self.caches:
            cache_.fill_(math.nan)

    def take(self) -> int:
        block = next(b for b in range(1, NUM_BLOCKS) if not self.owners[b])
        self.owners[block] += 1
        self.peak = max(self.peak, len(+self.owners))
        return block

    def drop(self, block: int) -> None:
        if block:
            self.owners[block] -= 1
            if not self.owners[block]:
                for cache_ in self.caches:
                    cache_[block] = math.nan

    def prepare(self, request: Request, count: int) -> None:
        """Give back what left the windows, then allocate for ``count`` more tokens."""
        start = request.num_computed_tokens
        for number, group in enumerate(self.groups):
            table = request.blocks_of(number)
            window = group.sliding_window
            for column in range(0 if window is None else max(0, start - window + 1) // BLOCK):
                self.drop(table[column])
                table[column] = 0
            while len(table) * BLOCK < start + count:
                table.append(self.take())

    def release(self, request: Request) -> None:
        for number in range(len(self.groups)):
            for block in request.blocks_of(number):
                self.drop(block)
        request.replace_blocks([[] for _ in self.groups])
        request.num_computed_tokens = 0


@attrs.define
class Play:
    """One request in the hands of the scheduler."""

    prompt: int
    request: Request | None = None

    @property
    def generated(self) -> list[int]:
        return self.request.token_ids[self.request.num_prompt_tokens :] if self.request else []

    @property
    def done(self) -> bool:
        return len(self.generated) == OUTPUT

    @property
    def remaining(self) -> int:
        return len(self.request.token_ids) - self.request.num_computed_tokens


def run(
    engine: Rig, plays: list[Play], choices: Iterator[int], memory: Memory | None = None
) -> list[list[int]]:
    """Run to the end; ``choices`` decides everything and 0 is the plainest choice."""
    memory = memory or Memory(engine)
    while not all(play.done for play in plays):
        for play in plays:
            active = [p for p in plays if p.request and not p.done]
            if play.request is None and (not active or next(choices, 0) % 2 == 0):
                admit(memory, play, active, next(choices, 0))
        active = [play for play in plays if play.request and not play.done]
        if next(choices, 0) % 5 == 4:
            event("preempted")
            memory.release(active[next(choices, 0) % len(active)].request)
        chosen = [play for play in active if next(choices, 0) % 4 != 3] or active[:1]
        counts = [play.remaining - next(choices, 0) % play.remaining for play in chosen]
        for play, count in zip(chosen, counts, strict=True):
            memory.prepare(play.request, count)
        rows = engine.run([play.request for play in chosen], counts)
        for play in chosen:
            if play.request.request_id in rows:
                play.request.token_ids.append(int(rows[play.request.request_id].argmax()))
            if play.done:
                memory.release(play.request)
    assert not +memory.owners
    return [play.generated for play in plays]


def admit(memory: Memory, play: Play, active: list[Play], choice: int) -> None:
    tokens = list(PROMPTS[play.prompt])
    play.request = Request(f"r{id(play)}", tokens, len(tokens))
    memory.release(play.request)
    if choice % 2:
        for other in active:
            if start_on_blocks_of(memory, play.request, other.request):
                return


def start_on_blocks_of(memory: Memory, request: Request, other: Request) -> bool:
    """Share the longest prefix of whole blocks that every group still has."""
    common = 0
    for mine, theirs in zip(request.token_ids[:-1], other.token_ids, strict=False):
        if mine != theirs or common == other.num_computed_tokens:
            break
        common += 1
    for blocks in range(common // BLOCK, 0, -1):
        tables = [
            shared_table(group.sliding_window, list(other.blocks_of(number)[:blocks]))
            for number, group in enumerate(memory.groups)
        ]
        if all(table is not None for table in tables):
            event("starts on shared blocks")
            request.replace_blocks(tables)
            memory.owners.update(block for table in tables for block in table if block)
            request.num_computed_tokens = blocks * BLOCK
            return True
    return False


def shared_table(window: int | None, table: list[int]) -> list[int] | None:
    """The blocks of a prefix that its next token reads, None if one of them is gone."""
    hit = len(table) * BLOCK
    first = 0 if window is None else max(0, hit - window + 1) // BLOCK
    return None if 0 in table[first:] else [0] * first + table[first:]


@given(
    plays=st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=3),
    window=st.sampled_from(list(WINDOWS.values())),
    buckets=st.integers(0, len(BUCKET_SETS) - 1),
    choices=st.lists(st.integers(0, 59), min_size=40, max_size=150),
)
@settings(max_examples=50)
def test_any_schedule_over_freed_blocks_gives_the_tokens_of_transformers(
    plays: list[int], window: int, buckets: int, choices: list[int]
) -> None:
    engine = rig(window, buckets)
    tokens = run(engine, [Play(prompt) for prompt in plays], iter(choices))
    assert tokens == [alone(window, prompt) for prompt in plays]


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_a_windows_blocks_are_freed_on_the_way(window: int) -> None:
    engine, play = rig(window, 0), Play(3)
    memory, choices = Memory(engine), [0]
    for done in range(0, len(PROMPTS[3]) - BLOCK, BLOCK):
        choices += [0, 0, len(PROMPTS[3]) - done - BLOCK]  # neither preempt nor skip, one block
    assert run(engine, [play], iter(choices), memory) == [alone(window, 3)]
    # 12 blocks of the full layer; the others hold a window and a chunk, at any alignment.
    assert memory.peak <= 12 + 2 * (-(-(window - 1 + BLOCK) // BLOCK) + 1)
