# SPDX-License-Identifier: Apache-2.0
"""Engines in processes of their own: answers, errors, hangs, deaths."""

import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.compare.child import EngineError, Runner
from tests.benchmarks.fake_engine import DIE, FAIL, HANG


@pytest.fixture
def open_runner(tmp_path):
    with contextlib.ExitStack() as stack:

        def open_one(**options):
            runner = Runner(
                Path(sys.executable),
                "tests.benchmarks.fake_engine",
                {"version": "7", **options},
                {},
                tmp_path / "engine.log",
                20.0,
            )
            stack.callback(runner.close)
            return runner

        yield open_one


def alive(runner):
    try:
        os.killpg(runner.processes.process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_engine_answers_and_an_error_does_not_end_it(open_runner):
    runner = open_runner()
    assert runner.about == {"fake": "7"}
    assert runner.start_seconds > 0
    assert runner.processes.peak_bytes() > 1 << 20
    assert runner.generate([[5], [6]], 3, 5.0)["tokens"] == 6
    with pytest.raises(EngineError, match="ValueError: bad prompt"):
        runner.generate([[FAIL]], 3, 5.0)
    runner.pause()
    runner.resume()
    assert runner.generate([[5]], 3, 5.0)["tokens"] == 3


def test_an_engine_that_dies_is_named_with_its_status(open_runner):
    runner = open_runner()
    with pytest.raises(EngineError, match="it ended: status 3"):
        runner.generate([[DIE]], 3, 5.0)
    with pytest.raises(EngineError):
        runner.generate([[5]], 3, 5.0)


def test_an_engine_that_hangs_is_given_up_in_time_and_killed(open_runner, monkeypatch):
    monkeypatch.setattr("benchmarks.compare.child.GRACE", 0.1)
    runner = open_runner()
    started = time.monotonic()
    with pytest.raises(EngineError, match="no answer within 0 s"):
        runner.generate([[HANG]], 3, 0.2)
    runner.pause()
    runner.close()
    assert time.monotonic() - started < 5
    assert not alive(runner)


def test_an_engine_that_cannot_open_says_why(open_runner):
    with pytest.raises(EngineError, match="RuntimeError: no such model"):
        open_runner(broken=True)
