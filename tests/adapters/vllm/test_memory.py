# SPDX-License-Identifier: Apache-2.0
"""The KV cache's budget is arithmetic."""

import pickle

import pytest

pytest.importorskip("vllm")

from vllm.config import ParallelConfig

from trnport.adapters.vllm.memory import HostMemory, host_memory, kv_cache_bytes
from trnport.adapters.vllm.replicas import remember_replicas, workers_here
from trnport.core.errors import CapacityError

pytestmark = pytest.mark.vllm

GIB = 2**30


def budget(total=100, available=90, utilization=0.5, workers=1, model=5, explicit=None):
    return (
        kv_cache_bytes(
            HostMemory(total * GIB, available * GIB),
            utilization=utilization,
            num_workers=workers,
            model_bytes=model * GIB,
            explicit=None if explicit is None else explicit * GIB,
        )
        / GIB
    )


def test_a_share_of_the_workers_memory():
    assert budget() == pytest.approx(0.3 * 50)


def test_workers_share_the_machine():
    assert budget(workers=2) == pytest.approx(0.3 * 25)


def test_a_large_model_leaves_less():
    assert budget(model=45) == pytest.approx(5)


def test_a_model_over_its_share_leaves_nothing_and_never_less():
    assert budget(model=60) == 0


def test_never_more_than_is_free():
    assert budget(available=2) == pytest.approx(2)


def test_workers_share_what_is_free():
    assert budget(available=6, workers=3) == pytest.approx(2)


def test_an_explicit_size_wins():
    assert budget(explicit=70) == 70
    assert budget(explicit=30, workers=3) == 30


def test_an_explicit_size_that_is_not_there_is_refused_with_the_numbers():
    with pytest.raises(CapacityError, match=r"95\.00 GiB and 90\.00 GiB.*kv_cache_memory_bytes"):
        budget(explicit=95)


def test_an_explicit_size_counts_for_each_worker():
    message = r"31\.00 GiB for each of 3 workers and 90\.00 GiB.*at most 30\.00 GiB"
    with pytest.raises(CapacityError, match=message):
        budget(explicit=31, workers=3)


@pytest.mark.parametrize(("tp", "replicas"), [(1, 1), (3, 1), (1, 2), (2, 4)])
def test_a_worker_knows_how_many_there_are(tp, replicas):
    # What vLLM does on the way to a worker of a model without experts.
    config = ParallelConfig(tensor_parallel_size=tp, data_parallel_size=replicas)
    config.data_parallel_size_local = replicas
    remember_replicas(config)
    received = pickle.loads(pickle.dumps(config))
    received.reconfigure_for_independent_dp_rank()
    remember_replicas(received)
    assert received.data_parallel_size_local == 1
    assert workers_here(received) == tp * replicas


def test_this_machine_has_memory():
    host = host_memory()
    assert 0 < host.available <= host.total
