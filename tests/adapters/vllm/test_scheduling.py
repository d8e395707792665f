# SPDX-License-Identifier: Apache-2.0
"""Schedule policies: order and counts on vLLM's real scheduler, without a model."""

import random

import pytest
import torch

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from trnport.adapters.vllm.scheduling import (
    PolicyAsyncScheduler,
    PolicyScheduler,
    choose_scheduler,
    is_generation,
)
from trnport.core.errors import ConfigError

pytestmark = pytest.mark.vllm

POLICIES = ["mixed", "prefill_first", "decode_first"]
BLOCK = 4
SMALLEST, LARGEST = 8, 32


@pytest.fixture(scope="module")
def config_of(tiny):
    """Real configurations of a tiny model, one for each policy and budget."""
    init_none_hash(sha256)
    built = {}

    def config(policy, max_num_seqs=4) -> VllmConfig:
        if (policy, max_num_seqs) not in built:
            built[policy, max_num_seqs] = EngineArgs(
                model=str(tiny[0]),
                dtype="float32",
                max_model_len=128,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=LARGEST,
                block_size=BLOCK,
                additional_config={
                    "neuron_config": {
                        "schedule_policy": policy,
                        "num_batched_tokens_buckets": [SMALLEST, LARGEST],
                    }
                },
            ).create_engine_config()
        return built[policy, max_num_seqs]

    return config


class Bench:
    """A scheduler whose model always answers token 7.

    With a depth of 2 steps overlap: each is scheduled before the one before it has answered.
    """

    def __init__(self, config, blocks=200, depth=1):
        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=4, dtype=torch.float32)
        caches = KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layers.0.self_attn"], spec)])
        policy = config.additional_config["neuron_config"]["schedule_policy"]
        config.scheduler_config.async_scheduling = depth > 1
        choose_scheduler(config, policy)
        self.scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=caches,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.outputs, self.told, self.preemptions = {}, set(), 0
        self.policy, self.depth, self.unanswered = policy, depth, []

    def add(self, name, length, count=16, seed=None):
        chance = random.Random(seed or name)
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=[chance.randrange(9, 99) for _ in range(length)],
                sampling_params=SamplingParams(max_tokens=count, ignore_eos=True),
                pooling_params=None,
                block_hasher=self.hasher,
            )
        )

    def step(self):
        """Schedule a step and answer the oldest: request id to tokens, in vLLM's order."""
        waiting = len(self.scheduler.waiting)
        computed = {r.request_id: r.num_computed_tokens for r in self.scheduler.running}
        out = self.scheduler.schedule()
        self.preemptions += max(0, len(self.scheduler.waiting) - waiting)
        self.told |= out.finished_req_ids
        counts = dict(out.num_scheduled_tokens)
        starts = {new.req_id: new.num_computed_tokens for new in out.scheduled_new_reqs}
        cached = out.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        assert computed.items() <= (computed | starts).items()
        self.prompts = [r for r, n in counts.items() if not (starts[r] and n == 1)]
        self.generations = [r for r in counts if r not in self.prompts]
        ends = {r for r in counts if not self.scheduler.requests[r].is_prefill_chunk}
        self.unanswered.append((out, ends))
        if len(self.unanswered) == self.depth or not counts:
            self.answer(*self.unanswered.pop(0))
        return counts

    def answer(self, out, ends):
        names = list(out.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[7] if name in ends else [] for name in names],
        )
        for outputs in self.scheduler.update_from_output(out, result).values():
            for output in outputs.outputs:
                new = len(output.new_token_ids)
                self.outputs[output.request_id] = self.outputs.get(output.request_id, 0) + new

    def generating(self):
        """Running requests that wait for their next token, unless it is their last already."""
        return {
            r.request_id
            for r in self.scheduler.running
            if is_generation(r) and r.num_output_tokens + r.num_output_placeholders < r.max_tokens
        }


@pytest.fixture
def bench(config_of):
    def make(policy, blocks=200, depth=1, **sizes):
        return Bench(config_of(policy, **sizes), blocks, depth)

    return make


def test_mixed_is_vllms_own_order(bench):
    b = bench("mixed")
    assert type(b.scheduler) is Scheduler
    b.add("first", 20)
    assert b.step() == {"first": 20}
    b.add("long", 100)
    b.add("short", 3)
    assert list(b.step().items()) == [("first", 1), ("long", 31)]
    assert list(b.step().items()) == [("first", 1), ("long", 31)]
    assert list(b.step().items()) == [("first", 1), ("long", 31)]
    assert list(b.step().items()) == [("first", 1), ("long", 7), ("short", 3)]


def test_decode_first_gives_prompts_one_smallest_chunk(bench):
    b = bench("decode_first")
    b.add("first", 20)
    b.add("second", 40)
    assert b.step() == {"first": 20, "second": 12}, "nobody generates: the whole budget"
    b.add("short", 3)
    for left in (8, 8, 8, 4):
        assert list(b.step().items()) == [("first", 1), ("second", left)]
    assert list(b.step().items()) == [("first", 1), ("second", 1), ("short", 3)]
    b.add("tiny", 2)
    b.add("later", 2)
    for i in range(50):
        b.add(f"more-{i}", 2)
    looked_at = b.scheduler.kv_cache_manager.get_computed_blocks
    b.scheduler.kv_cache_manager.get_computed_blocks = lambda request, *rest: (
        b.told.add(request.request_id) or looked_at(request, *rest)
    )
    assert list(b.step().items()) == [("first", 1), ("second", 1), ("short", 1), ("tiny", 2)]
    assert b.told == {"tiny"}, "the rest of the queue costs no time once the chunk is given"
    assert not b.scheduler.deferred_waiting, "nobody counts as skipped in the metrics"


def test_decode_first_lets_generations_pass_a_prompt_in_progress(bench):
    b = bench("decode_first")
    b.scheduler.scheduler_config.long_prefill_token_threshold = LARGEST // 2
    try:
        b.add("long", 100, count=2)
        b.add("other", 100, count=2)
        b.add("short", 3)
        assert b.step() == {"long": 16, "other": 16}
        b.scheduler.scheduler_config.long_prefill_token_threshold = 14
        assert b.step() == {"long": 14, "other": 14, "short": 3}
        assert list(b.step().items()) == [("short", 1), ("long", 8)]
    finally:
        b.scheduler.scheduler_config.long_prefill_token_threshold = 0


def test_prefill_first_holds_generations_while_a_prompt_advances(bench):
    b = bench("prefill_first")
    b.add("first", 20)
    assert b.step() == {"first": 20}
    assert b.step() == {"first": 1}
    b.add("long", 70)
    b.add("short", 3)
    assert [b.step() for _ in range(3)] == [{"long": 32}, {"long": 32}, {"long": 6, "short": 3}]
    assert list(b.step().items()) == [("first", 1), ("long", 1), ("short", 1)]


def test_prefill_first_does_not_wait_for_prompts_without_a_place(bench):
    b = bench("prefill_first", blocks=12)  # 11 blocks of 4
    b.add("first", 24, count=4)
    b.step()
    b.add("big", 40, count=1)  # 10 blocks, 5 are free
    b.add("gone", 4)
    b.scheduler.finish_requests("gone", RequestStatus.FINISHED_ABORTED)
    for _ in range(3):
        assert b.step() == {"first": 1}
    assert "gone" in b.told, "also when two attempts made the step"
    assert b.step() == {"big": 32}
    assert b.step() == {"big": 8}
    assert b.told >= {"first", "gone"}


def test_prefill_first_generates_once_all_places_are_taken(bench):
    b = bench("prefill_first", max_num_seqs=2)
    for name in "abcd":
        b.add(name, 5, count=3)
    assert b.step() == {"a": 5, "b": 5}
    assert b.step() == b.step() == {"a": 1, "b": 1}
    assert b.step() == {"c": 5, "d": 5}


def play(b, seed):
    """Random arrivals and aborts to the end; what was seen on the way."""
    chance = random.Random(seed)
    lengths = {f"r{i}": (chance.randint(1, 60), chance.randint(1, 12)) for i in range(25)}
    pending, aborted, steps = list(lengths), set(), 0
    while pending or b.scheduler.has_unfinished_requests():
        while pending and chance.random() < 0.4:
            name = pending.pop(0)
            b.add(name, *lengths[name], seed=chance.choice([None, "same"]))
        if chance.random() < 0.05:
            name = f"r{chance.randrange(25)}"
            b.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            if name not in pending:
                aborted.add(name)
        generating = b.generating()
        b.step()
        check_step(b, generating)
        steps += 1
        assert steps < 3000, "somebody starves"
    while b.unanswered:
        b.answer(*b.unanswered.pop(0))
    for name, (_, count) in lengths.items():
        if name not in aborted:
            assert b.outputs[name] == count
    pool = b.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


def check_step(b, generating):
    """No generation waits for more than the policy's share of a prompt."""
    still = generating & {r.request_id for r in b.scheduler.running} - set(b.generations)
    if b.policy != "prefill_first":
        assert not still, "a generation that could run was passed over"
    else:
        assert not (b.prompts and generating & set(b.generations))
    if b.policy == "decode_first" and generating & set(b.generations):
        assert len(b.prompts) <= 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [200, 24])
@pytest.mark.parametrize("depth", [1, 2])
def test_random_traffic_ends_under_every_policy(bench, policy, blocks, depth):
    b = bench(policy, blocks=blocks, depth=depth)
    for seed in range(4):
        b.outputs.clear()
        play(b, seed)
    assert bool(b.preemptions) == (blocks == 24)


def test_the_policy_chooses_the_scheduler(config_of):
    config = config_of("decode_first", max_num_seqs=3)  # nobody else's, so as the platform left it
    scheduler = config.scheduler_config
    assert scheduler.get_scheduler_cls() is PolicyAsyncScheduler
    scheduler.async_scheduling = False
    choose_scheduler(config, "decode_first")
    assert scheduler.get_scheduler_cls() is PolicyScheduler
    scheduler.async_scheduling = True
    choose_scheduler(config, "mixed")
    assert scheduler.get_scheduler_cls() is AsyncScheduler
    scheduler.async_scheduling = False
    scheduler.scheduler_cls = "somebody.Else"
    choose_scheduler(config, "mixed")
    assert scheduler.scheduler_cls == "somebody.Else"
    with pytest.raises(ConfigError, match=r"schedule_policy='prefill_first' and .*somebody.Else"):
        choose_scheduler(config, "prefill_first")
