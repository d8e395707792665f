# SPDX-License-Identifier: Apache-2.0
"""The worker's way through a step."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm")

from trnport.adapters.vllm.worker import NeuronWorker

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("runner", ["_steps", "_pooling"])
def test_blocks_are_copied_before_any_runner_reads_them(runner):
    cache = torch.arange(3.0)[:, None].clone()
    seen = []

    def execute(schedule):
        seen.append(cache.flatten().tolist())
        return True

    worker = NeuronWorker.__new__(NeuronWorker)
    worker._steps = worker._pooling = worker._thread = None
    worker._caches = {"layer": [cache, cache.clone()]}
    worker._telemetry = SimpleNamespace(step=lambda schedule: contextlib.nullcontext())
    setattr(worker, runner, SimpleNamespace(execute=execute))
    worker.execute_model(SimpleNamespace(kv_cache_block_copies=[(1, 2)]))
    assert seen == [[0.0, 1.0, 1.0]]
