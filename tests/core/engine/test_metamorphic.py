# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens survive any schedule: order, chunks, mates, preemption, shared prefixes.

Hypothesis plays the scheduler. It may admit, split, interleave, preempt and resume requests
and let one start on blocks that another has filled; whatever it does, each request's tokens
are those it gets alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import attrs
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.harness import Rig, make_rig
from tests.zoo import save_llama
from trnport.adapters.eager import EagerCompiler
from trnport.adapters.fake import RecordingCompiler
from trnport.core.engine.batch import Request

BLOCK = 3
LIMIT = 40
OUTPUT = 5
BUCKET_SETS = [
    {"num_batched_tokens_buckets": [LIMIT], "num_seqs_buckets": [4]},
    {
        "num_batched_tokens_buckets": [2, 5, 9, LIMIT],
        "num_seqs_buckets": [1, 3, 4],
        "decode_context_length_buckets": [4, 10, 21],
    },
    {
        "num_batched_tokens_buckets": [5, 14, LIMIT],
        "num_seqs_buckets": [4],
        "decode_context_length_buckets": [10],
        "max_prefills_per_batch": 3,
    },
]
# The second and third prompts share prefixes that end inside a block, at its edge and beyond.
PROMPTS = [
    [7],
    [11, 3, 5, 90, 2, 61, 8],
    [11, 3, 5, 90, 2, 61, 14, 3, 3, 8, 100],
    [(13 * i + 1) % 131 for i in range(23)],
]


@cache
def checkpoint() -> Path:
    directory = Path(mkdtemp())
    save_llama(directory, hidden_size=24, intermediate_size=13, num_hidden_layers=1)
    return directory


@cache
def rig(buckets: int) -> Rig:
    return make_rig(
        checkpoint(),
        max_model_len=LIMIT,
        block_size=BLOCK,
        num_blocks=400,
        neuron_config=BUCKET_SETS[buckets],
        compiler=RecordingCompiler(EagerCompiler()),
        warm_up=True,
    )


@cache
def alone(prompt: int) -> list[int]:
    """The tokens of a prompt in one prefill and single decodes."""
    return run(rig(0), [Play(prompt)], iter([]))[0]


@attrs.define
class Play:
    """One request in the hands of the scheduler."""

    prompt: int
    request: Request | None = None

    @property
    def generated(self) -> list[int]:
        return self.request.token_ids[self.request.num_prompt_tokens :] if self.request else []

    @property
    def remaining(self) -> int:
        assert self.request is not None
        return len(self.request.token_ids) - self.request.num_computed_tokens


def run(engine: Rig, plays: list[Play], choices: Iterator[int]) -> list[list[int]]:
    """Run to the end; ``choices`` decides everything and 0 is the plainest choice."""
    engine.next_block = 1
    while any(len(play.generated) < OUTPUT for play in plays):
        admit(engine, plays, choices)
        active = [play for play in plays if play.request and len(play.generated) < OUTPUT]
        if next(choices, 0) % 5 == 4:
            preempt(engine, active[next(choices, 0) % len(active)].request)
        chosen = [play for play in active if next(choices, 0) % 4 != 3] or active[:1]
        chosen = rotate(chosen, next(choices, 0))
        counts = [play.remaining - next(choices, 0) % play.remaining for play in chosen]
        rows = engine.run([play.request for play in chosen], counts)
        for play in chosen:
            if play.request.request_id in rows:
                play.request.token_ids.append(int(rows[play.request.request_id].argmax()))
    return [play.generated for play in plays]


def admit(engine: Rig, plays: list[Play], choices: Iterator[int]) -> None:
    """Let requests arrive, some later than others, but never leave the engine idle."""
    for play in plays:
        idle = all(p.request is None or len(p.generated) == OUTPUT for p in plays)
        if play.request is None and (idle or next(choices, 0) % 2 == 0):
            play.request = engine.request(PROMPTS[play.prompt], room=OUTPUT)
            share_prefix(play.request, plays, next(choices, 0), engine.block_size)


def rotate(plays: list[Play], choice: int) -> list[Play]:
    turn = choice % len(plays)
    return plays[turn:] + plays[:turn]


def share_prefix(request: Request, plays: list[Play], choice: int, block_size: int) -> None:
    """Start on whole blocks that another request has filled with the same tokens."""
    if choice % 2 == 0:
        return
    for other in (play.request for play in plays if play.request not in (None, request)):
        common = 0
        pairs = zip(request.token_ids[:-1], other.token_ids, strict=False)
        for mine, theirs in pairs:
            if mine != theirs or common == other.num_computed_tokens:
                break
            common += 1
        blocks = common // block_size
        if blocks:
            event("starts on shared blocks")
            request.block_ids[:blocks] = other.block_ids[:blocks]
            request.num_computed_tokens = blocks * block_size
            return


def preempt(engine: Rig, request: Request | None) -> None:
    """Take everything away: it starts again in other blocks, output included."""
    assert request is not None
    event("preempted")
    replacement = engine.request(request.token_ids, room=OUTPUT)
    request.block_ids, request.num_computed_tokens = replacement.block_ids, 0


@given(
    plays=st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=4),
    buckets=st.integers(0, len(BUCKET_SETS) - 1),
    choices=st.lists(st.integers(0, 59), min_size=40, max_size=150),
)
@settings(max_examples=100)
def test_any_schedule_gives_the_tokens_of_a_request_alone(
    plays: list[int], buckets: int, choices: list[int]
) -> None:
    engine = rig(buckets)
    tokens = run(engine, [Play(prompt) for prompt in plays], iter(choices))
    assert tokens == [alone(prompt) for prompt in plays]


def test_the_reference_itself_is_transformers() -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint(), dtype=torch.float32)
    for number, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        model.generation_config.eos_token_id = None
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=OUTPUT, do_sample=False
        )
        assert alone(number) == output[0, len(prompt) :].tolist()
