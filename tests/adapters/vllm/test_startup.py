# SPDX-License-Identifier: Apache-2.0
"""The log of a start: which program is waited for, and where the time went."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import structlog

from trnport.adapters.vllm import startup
from trnport.core.ports.compiler import Origins


@pytest.fixture
def events():
    with structlog.testing.capture_logs() as found:
        yield found


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(startup.time, "monotonic", lambda: now.seconds)
    return now


def test_the_phases_of_a_start_add_up(events, clock, monkeypatch):
    monkeypatch.setattr(startup, "is_server", lambda: True)
    monkeypatch.setattr(startup, "process_start", lambda: 995.0)
    config = SimpleNamespace()
    startup.remember_start(config)
    clock.seconds += 1
    startup.remember_start(config)  # vLLM checks each copy of a configuration again
    start = startup.StartUp(config)
    for name, seconds in {"weights": 0.5, "kv_cache": 0.25, "warm_up": 2}.items():
        with start.phase(name):
            clock.seconds += seconds
    clock.seconds += 0.31
    start.log(Origins(cached=12, compiled=1, seconds=1.5))
    (event,) = events
    assert event == {
        "event": "started",
        "log_level": "info",
        "seconds": 9.1,
        "imports": 5.0,
        "engine_process": 1.0,
        "weights": 0.5,
        "kv_cache": 0.2,
        "programs": 1.5,
        "warm_up": 0.5,
        "other": 0.3,
        "programs_from_cache": 12,
        "programs_compiled": 1,
    }


def test_in_a_script_an_engine_starts_with_its_configuration(events, clock):
    config = SimpleNamespace()
    startup.remember_start(config)
    clock.seconds += 2
    startup.StartUp(config).log(Origins())
    assert events[0]["seconds"] == 2.0 and events[0]["imports"] == 0


def test_the_start_of_a_process_is_when_it_was_made():
    code = "from trnport.adapters.vllm.startup import process_start; print(process_start())"
    before = time.monotonic()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # The kernel counts in hundredths of a second, and imports take longer than that.
    tick = 2 / os.sysconf("SC_CLK_TCK")
    assert before - tick <= float(found.stdout) <= before + 0.5


def test_warm_up_names_the_next_program_and_what_the_last_one_took(events):
    progress = startup.WarmUpLog()
    for done, (name, elapsed) in enumerate([("prefill_s128", 0.0), ("decode_b1", 61.2)]):
        progress(done, 2, name, elapsed)
    progress(2, 2, "ready", 100.0)
    assert [{**event, "log_level": None} for event in events] == [
        {"event": "warm-up", "program": "prefill_s128", "number": 1, "of": 2, "log_level": None},
        {
            "event": "warm-up",
            "program": "decode_b1",
            "number": 2,
            "of": 2,
            "last_one": 61.2,
            "log_level": None,
        },
        {"event": "warm-up done", "programs": 2, "seconds": 100.0, "log_level": None},
    ]
