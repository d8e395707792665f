# SPDX-License-Identifier: Apache-2.0
"""SchedulerOutput to batch state, without an engine."""

import pytest
import torch

pytest.importorskip("vllm")

from vllm import PoolingParams, SamplingParams
from vllm.v1.core.sched.output import (
    CachedRequestData,
    NewRequestData,
    SchedulerOutput,
)

from trnport.adapters.vllm.sampled import SampledRequests
from trnport.adapters.vllm.translate import apply_schedule
from trnport.core.engine.batch import BatchState

pytestmark = pytest.mark.vllm


def new(request_id="r", prompt=(5, 6, 7), blocks=(1,), computed=0, params=None, tokens=None):
    return NewRequestData(
        req_id=request_id,
        prompt_token_ids=None if prompt is None else list(prompt),
        mm_features=[],
        sampling_params=params or SamplingParams(temperature=0),
        pooling_params=None,
        block_ids=(list(blocks),),
        num_computed_tokens=computed,
        lora_request=None,
        prefill_token_ids=tokens,
    )


def cached(request_id="r", blocks=None, computed=3, outputs=0, resumed=False, tokens=None):
    return CachedRequestData(
        req_ids=[request_id],
        resumed_req_ids={request_id} if resumed else set(),
        new_token_ids=[],
        all_token_ids={} if tokens is None else {request_id: list(tokens)},
        new_block_ids=[None if blocks is None else (list(blocks),)],
        num_computed_tokens=[computed],
        num_output_tokens=[outputs],
    )


class Worker:
    """Batch and sampling state, fed with schedules."""

    def __init__(self):
        self.batch, self.sampled = BatchState(), SampledRequests()

    def step(self, added=(), changed=None, finished=()):
        schedule = SchedulerOutput.make_empty()
        schedule.scheduled_new_reqs = list(added)
        schedule.finished_req_ids = set(finished)
        if changed is not None:
            schedule.scheduled_cached_reqs = changed
        apply_schedule(self.batch, self.sampled, schedule)

    def generate(self, token, request_id="r"):
        self.batch[request_id].token_ids.append(token)
        self.sampled.append(request_id, token)


@pytest.fixture
def worker():
    return Worker()


def test_a_new_request(worker):
    worker.step(added=[new(params=SamplingParams(temperature=0.5, top_k=3, top_p=0.9, seed=7))])
    request = worker.batch["r"]
    assert request.token_ids == [5, 6, 7]
    assert request.num_prompt_tokens == 3
    assert list(request.block_ids) == [1]
    assert request.sampling.temperature == 0.5
    assert (request.sampling.top_k, request.sampling.top_p, request.sampling.seed) == (3, 0.9, 7)


def test_a_cached_prefix_is_a_normal_start(worker):
    worker.step(added=[new(blocks=(4, 5), computed=2)])
    assert worker.batch["r"].num_computed_tokens == 2


def test_blocks_are_appended(worker):
    worker.step(added=[new()])
    worker.step(changed=cached(blocks=(9,)))
    assert list(worker.batch["r"].block_ids) == [1, 9]
    worker.step(changed=cached())
    assert list(worker.batch["r"].block_ids) == [1, 9]


def test_the_schedulers_lists_are_not_shared(worker):
    data = new()
    worker.step(added=[data])
    worker.step(changed=cached(blocks=(9,)))
    worker.generate(8)
    assert data.block_ids == ([1],) and data.prompt_token_ids == [5, 6, 7]


def test_generated_tokens_survive_the_next_schedule(worker):
    worker.step(added=[new()])
    worker.generate(8)
    worker.step(changed=cached(outputs=1))
    assert worker.batch["r"].token_ids == [5, 6, 7, 8]
    assert worker.sampled["r"].outputs == [8]


def test_a_preempted_request_resumes_with_new_blocks_and_all_its_tokens_once(worker):
    worker.step(added=[new()])
    worker.generate(8)
    worker.generate(9)
    worker.step(
        changed=cached(blocks=(3, 4), computed=0, outputs=2, resumed=True, tokens=[5, 6, 7, 8, 9])
    )
    request = worker.batch["r"]
    assert list(request.block_ids) == [3, 4]
    assert request.num_computed_tokens == 0
    assert request.token_ids == [5, 6, 7, 8, 9]
    assert worker.sampled["r"].outputs == [8, 9]


def test_a_request_resumed_in_full_keeps_its_random_stream(worker):
    params = SamplingParams(temperature=1, seed=3)
    worker.step(added=[new(params=params)])
    generator = worker.sampled["r"].generator
    torch.rand(1, generator=generator)
    worker.generate(8)
    worker.step(added=[new(params=params, blocks=(2,), tokens=[5, 6, 7, 8])])
    assert worker.batch["r"].token_ids == [5, 6, 7, 8]
    assert worker.batch["r"].num_prompt_tokens == 3
    assert worker.sampled["r"].generator is generator


def test_tokens_the_scheduler_took_back_are_dropped(worker):
    worker.step(added=[new()])
    for token in (8, 9, 10):
        worker.generate(token)
    outputs = worker.sampled["r"].outputs
    worker.step(changed=cached(outputs=1))
    assert worker.batch["r"].token_ids == [5, 6, 7, 8]
    assert worker.sampled["r"].outputs is outputs, "logits processors hold on to this list"
    assert outputs == [8]


def test_finished_twice_and_unknown(worker):
    worker.step(added=[new()])
    worker.step(finished=["r"])
    worker.step(finished=["r", "never seen"])
    assert len(worker.batch) == len(worker.sampled) == 0


def test_an_id_that_is_finished_and_new_in_one_step_is_a_new_request(worker):
    worker.step(added=[new(params=SamplingParams(temperature=1, seed=1))])
    old = worker.sampled["r"].generator
    worker.step(
        added=[new(prompt=(1,), params=SamplingParams(temperature=1, seed=1))], finished=["r"]
    )
    assert worker.batch["r"].token_ids == [1]
    assert worker.sampled["r"].generator is not old


def test_a_prompt_of_embeddings_counts_positions_and_no_tokens(worker):
    data = new(prompt=None)
    data.prompt_embeds = torch.ones(3, 8)
    worker.step(added=[data])
    request = worker.batch["r"]
    assert (request.num_prompt_tokens, request.prefill_until) == (3, 3)
    assert request.prompt_embeds.is_token_ids is None
    assert worker.sampled["r"].prompt == [], "penalties have nothing to count"


def test_of_ids_and_embeddings_the_mask_chooses(worker):
    data = new(prompt=(5, 999, 7))
    data.prompt_embeds, data.prompt_is_token_ids = torch.ones(3, 8), [True, False, True]
    worker.step(added=[data])
    request = worker.batch["r"]
    assert request.token_ids == [5, 0, 7], "999 only marks the place of an embedding"
    assert request.prompt_embeds.is_token_ids.tolist() == [True, False, True]
    assert worker.sampled["r"].prompt == [5, 7]


def test_which_tokens_need_a_prefill_program(worker):
    worker.step(added=[new(), new("scored", params=SamplingParams(prompt_logprobs=0))])
    pooled = new("pooled")
    pooled.sampling_params, pooled.pooling_params = None, PoolingParams(task="embed")
    worker.step(added=[pooled])
    assert [worker.batch[i].prefill_until for i in ("r", "scored", "pooled")] == [0, 2, 3]
    assert "pooled" not in worker.sampled
    worker.step(changed=cached("pooled", computed=1))


def test_blocks_of_several_groups_of_layers_stay_apart(worker):
    data = new()
    data.block_ids = ([1], [2], [0, 7])
    worker.step(added=[data])
    changed = cached()
    changed.new_block_ids = [([3], [], [8, 9])]
    worker.step(changed=changed)
    request = worker.batch["r"]
    assert [list(request.blocks_of(group)) for group in range(3)] == [[1, 3], [2], [0, 7, 8, 9]]
    assert data.block_ids == ([1], [2], [0, 7]), "the scheduler's lists are its own"


@pytest.mark.parametrize("resumed", [([4], [5]), None])
def test_a_preempted_request_has_the_new_blocks_of_every_group_alone(worker, resumed):
    data = new()
    data.block_ids = ([1, 2], [3])
    worker.step(added=[data])
    changed = cached(computed=0, resumed=True)
    changed.new_block_ids = [resumed]
    worker.step(changed=changed)
    changed = cached()
    changed.new_block_ids = [([6], [7])]
    worker.step(changed=changed)
    request = worker.batch["r"]
    expected = [[*blocks, late] for blocks, late in zip(resumed or ([], []), (6, 7), strict=True)]
    assert [list(request.blocks_of(group)) for group in range(2)] == expected


def test_a_token_of_a_step_under_way_outlives_the_schedulers_older_tokens(worker):
    worker.step(added=[new()])
    worker.generate(20)
    worker.generate(21)
    # The scheduler has seen 20 and counts a placeholder for the step that gave 21.
    worker.step(changed=cached(computed=4, outputs=2, tokens=[5, 6, 7, 20]))
    assert worker.batch["r"].token_ids == [5, 6, 7, 20, 21]
    assert worker.sampled["r"].outputs == [20, 21]
    # It has taken 21 back.
    worker.step(changed=cached(computed=3, outputs=1, tokens=[5, 6, 7, 20]))
    assert worker.batch["r"].token_ids == [5, 6, 7, 20]
    assert worker.sampled["r"].outputs == [20]


def test_a_request_sent_again_keeps_its_random_stream(worker):
    worker.step(added=[new(), new("other")])
    streams = [worker.batch[name].random_stream for name in ("r", "other")]
    assert streams[0] != streams[1]
    worker.step(added=[new(tokens=[5, 6, 7, 8])])
    assert worker.batch["r"].random_stream == streams[0]


def test_a_seed_decides_the_random_stream(worker):
    seeded = [
        new(name, params=SamplingParams(seed=seed))
        for name, seed in zip("abc", (7, 7, 8), strict=True)
    ]
    worker.step(added=seeded)
    streams = [worker.batch[name].random_stream for name in "abc"]
    assert streams[0] == streams[1] != streams[2]
