# SPDX-License-Identifier: Apache-2.0
"""The KV cache's budget is arithmetic."""

import pytest

from trnport.adapters.vllm.memory import HostMemory, host_memory, kv_cache_bytes
from trnport.core.errors import CapacityError

pytest.importorskip("vllm")

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


def test_an_explicit_size_wins():
    assert budget(explicit=70) == 70


def test_an_explicit_size_that_is_not_there_is_refused_with_both_numbers():
    with pytest.raises(CapacityError, match=r"95\.00 GiB.*90\.00 GiB.*kv_cache_memory_bytes"):
        budget(explicit=95)


def test_this_machine_has_memory():
    host = host_memory()
    assert 0 < host.available <= host.total
