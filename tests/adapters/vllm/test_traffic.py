# SPDX-License-Identifier: Apache-2.0
"""Random traffic: arrivals, aborts, shared prefixes and preemption change nobody's tokens."""

import random

import pytest
import torch

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from tests.adapters.vllm.conftest import (
    count_preemptions,
    generate,
    open_llm,
    scheduler_of,
    worker_of,
)

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

MAX_LEN = 40
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 1.0, "seed": 7, "top_k": 20}
PENALISED = {"temperature": 0, "repetition_penalty": 1.5, "presence_penalty": 0.5}


def random_requests(chance, count):
    """(prompt, number of tokens, parameters), many of them with a common beginning."""
    beginning = [chance.randrange(3, 131) for _ in range(24)]
    requests = []
    for _ in range(count):
        length = chance.randint(1, 30)
        shared = chance.choice([0, 0, min(length, chance.randint(1, 24))])
        prompt = beginning[:shared] + [chance.randrange(3, 131) for _ in range(length - shared)]
        params = chance.choice([GREEDY, SEEDED, PENALISED])
        requests.append((prompt, chance.randint(1, MAX_LEN - length), params))
    return requests


def drive(engine, requests, chance):
    """Send requests at random times, abort some; tokens of those that ended by index."""
    core = engine.llm_engine
    waiting, outputs, aborted = list(enumerate(requests)), {}, set()
    while waiting or core.has_unfinished_requests():
        while waiting and chance.random() < 0.5:
            index, (prompt, count, params) = waiting.pop(0)
            full = SamplingParams(
                max_tokens=count,
                ignore_eos=True,
                output_kind=RequestOutputKind.FINAL_ONLY,
                **params,
            )
            core.add_request(str(index), {"prompt_token_ids": prompt}, full)
        if chance.random() < 0.1:
            victim = str(chance.randrange(len(requests)))
            core.abort_request([victim])
            core.abort_request([victim])
            aborted.add(int(victim))
        for output in core.step():
            if output.finished:
                outputs[int(output.request_id)] = list(output.outputs[0].token_ids)
    return {i: tokens for i, tokens in outputs.items() if i not in aborted}


@pytest.mark.parametrize("seed", range(3))
def test_random_traffic(tiny, seed):
    chance = random.Random(seed)
    requests = random_requests(chance, 40)
    with open_llm(
        tiny[0], max_model_len=MAX_LEN, max_num_batched_tokens=16, num_gpu_blocks_override=18
    ) as engine:
        scheduler = scheduler_of(engine)
        preemptions = count_preemptions(engine)
        caches = [cache for layer in worker_of(engine)._caches.values() for cache in layer]
        for cache in caches:
            cache[0] = torch.nan  # the null block, which nobody may read or write
        outputs = drive(engine, requests, chance)
        assert len(outputs) > 15 and preemptions, "the traffic was meant to be rough"
        assert not scheduler.requests
        pool = scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
        for index, tokens in outputs.items():
            prompt, count, params = requests[index]
            scheduler.reset_prefix_cache()
            assert generate(engine, [prompt], count, **params) == [tokens]
        assert worker_of(engine)._steps.num_requests <= 1
        assert caches and all(cache[0].isnan().all() for cache in caches)
