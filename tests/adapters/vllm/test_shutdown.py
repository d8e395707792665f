# SPDX-License-Identifier: Apache-2.0
"""The log of a server that stops: no false alarm, and no true one lost."""

import logging

import pytest

pytest.importorskip("vllm")

from vllm.v1.engine.exceptions import EngineDeadError

from trnport.adapters.vllm.shutdown import LAUNCHER, READER, STOP_REQUESTED, StopFilter

pytestmark = pytest.mark.vllm


def record(name, message, error=None):
    exc_info = (type(error), error, None) if error else None
    return logging.LogRecord(name, logging.ERROR, "", 0, message, (), exc_info)


def test_the_end_of_the_engine_is_an_error_until_a_stop_is_requested():
    stop_filter = StopFilter()
    dead = record(READER, "AsyncLLM output_handler failed.", EngineDeadError())
    assert stop_filter.filter(dead)
    assert stop_filter.filter(record(LAUNCHER, STOP_REQUESTED))
    assert not stop_filter.filter(dead)


def test_other_errors_are_logged_while_stopping():
    stop_filter = StopFilter()
    stop_filter.filter(record(LAUNCHER, STOP_REQUESTED))
    assert stop_filter.filter(record(READER, "AsyncLLM output_handler failed.", ValueError()))
    assert stop_filter.filter(record("vllm.v1.engine.core", "died", EngineDeadError()))
    assert stop_filter.filter(record(READER, "no exception"))


def test_vllm_still_logs_what_the_filter_waits_for():
    import inspect

    from vllm.entrypoints.launchers import launcher

    assert STOP_REQUESTED in inspect.getsource(launcher)
