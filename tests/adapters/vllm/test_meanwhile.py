# SPDX-License-Identifier: Apache-2.0
"""What a server does while its engine starts."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from trnport.adapters.vllm import meanwhile
from trnport.adapters.vllm.start_method import METHOD

MODEL = Path.home() / ".cache/trnport/models/SmolLM2-135M-Instruct"

FORKS = textwrap.dedent("""
    import os, sys, threading, time
    from trnport.adapters.vllm.after_fork import AfterFork

    after = AfterFork()
    seen = []

    def nice():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = nice()

    def work():
        time.sleep(0.3)
        seen.append((os.getpid(), threading.current_thread() is threading.main_thread(), nice()))

    def fork(child):
        pid = os.fork()
        if pid == 0:
            child()
            os._exit(0)
        return os.waitpid(pid, 0)[1]

    def engine():
        fork(lambda: None)  # a worker
        time.sleep(0.5)
        if seen or threading.active_count() > 1:
            os._exit(1)

    def second():
        if len(seen) != 1:  # forked before the work was done
            os._exit(1)

    after.arm(lambda: seen.append("replaced"))
    after.arm(work)
    assert not seen and threading.active_count() == 1
    engine_status = fork(engine)
    assert seen == [(os.getpid(), False, max(before, 10))], seen
    assert nice() == before
    seen.clear()
    after.arm(work)
    fork(lambda: None)
    after.wait()
    assert not seen, "it worked twice"
    print(engine_status)
""")


def test_the_parent_of_the_first_fork_works_once_and_no_child_does():
    command = [sys.executable, "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "0", done.stderr


def test_a_fork_waits_for_the_work():
    script = FORKS.partition("after.arm")[0] + textwrap.dedent("""
        after.arm(work)
        fork(lambda: None)
        print(fork(second))
    """)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.parametrize("other", ["", "spawn", "script", "replicas", "http servers"])
def test_only_a_server_that_forks_one_engine_prepares_itself(monkeypatch, other):
    armed = []
    monkeypatch.setattr(meanwhile, "_after_fork", SimpleNamespace(arm=armed.append))
    monkeypatch.setattr(meanwhile, "is_server", lambda: other != "script")
    monkeypatch.setenv(METHOD, "spawn" if other == "spawn" else "fork")
    parallel = SimpleNamespace(
        data_parallel_size=2 if other == "replicas" else 1,
        _api_process_count=2 if other == "http servers" else 1,
    )
    meanwhile.prepare_http_server(SimpleNamespace(parallel_config=parallel, model_config=None))
    assert bool(armed) == (other == "")
    assert METHOD in os.environ
