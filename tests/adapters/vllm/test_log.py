# SPDX-License-Identifier: Apache-2.0
"""Log lines of core and models come out of vLLM's logger, with values by name."""

import io
import json
import logging
import re

import pytest
import structlog

pytest.importorskip("vllm")

from trnport.adapters.vllm import log as our_log
from trnport.adapters.vllm.env import read_environment
from trnport.core.errors import ConfigError

pytestmark = pytest.mark.vllm


@pytest.fixture
def stream(monkeypatch):
    """What vLLM's handler writes, at level DEBUG; logging is as before afterwards."""
    from vllm.config.logging import LoggingConfig
    from vllm.logger import configure_logging

    monkeypatch.delenv("TRNPORT_LOG_FORMAT", raising=False)
    configure_logging(LoggingConfig())
    root, ours = logging.getLogger("vllm"), logging.getLogger(our_log.ROOT)
    before = root.level, ours.handlers[:], ours.propagate
    (handler,) = root.handlers
    text, level = io.StringIO(), handler.level
    real = handler.setStream(text)
    root.setLevel(logging.DEBUG)
    handler.setLevel(logging.DEBUG)
    structlog.reset_defaults()
    yield text
    structlog.reset_defaults()
    handler.setStream(real)
    handler.setLevel(level)
    root.level, ours.handlers[:], ours.propagate = before
    root.manager._clear_cache()


def test_a_line_has_the_callers_place_and_its_values(stream):
    our_log.configure_logs()
    structlog.get_logger("trnport.models.x").warning("a 100% odd thing", size=3, share=1 / 3)
    (line,) = stream.getvalue().splitlines()
    assert re.search(
        r"WARNING .* \[.*test_log\.py:\d+\] a 100% odd thing size=3 share=0\.333333$", line
    )


def test_bound_variables_and_tracebacks_are_part_of_a_line(stream):
    our_log.configure_logs()
    with structlog.contextvars.bound_contextvars(request_id="r-7"):
        try:
            raise ValueError("boom")
        except ValueError:
            structlog.get_logger("trnport.core.x").exception("it failed")
    assert "it failed request_id=r-7" in stream.getvalue()
    assert "ValueError: boom" in stream.getvalue()


def test_levels_are_vllms(stream):
    our_log.configure_logs()
    logging.getLogger("vllm").setLevel(logging.INFO)
    log = structlog.get_logger("trnport.core.x")
    log.debug("quiet")
    log.info("loud")
    assert "loud" in stream.getvalue()
    assert "quiet" not in stream.getvalue()


def test_a_request_id_cannot_pretend_to_be_a_line(stream):
    our_log.configure_logs()
    structlog.get_logger("trnport.core.x").info("run", request_ids=["a", "b\nERROR all=lost"])
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r"run request_ids=a,'b\nERROR all=lost'")


def test_json_lines_are_json_whoever_writes_them(stream, monkeypatch):
    monkeypatch.setenv("TRNPORT_LOG_FORMAT", "json")
    our_log.configure_logs()
    our_log.configure_logs()
    structlog.get_logger("trnport.core.x").info("run", request_ids=["a", "b"], size=3)
    our_log.plugin_logger("trnport.adapters.vllm.worker").info("loaded %d GiB", 5)
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger("trnport.core.x").exception("it failed")
    logging.getLogger("vllm.engine").info("theirs")
    *ours, theirs = stream.getvalue().splitlines()
    first, second, third = map(json.loads, ours)
    assert (first["event"], first["request_ids"], first["size"]) == ("run", ["a", "b"], 3)
    assert (first["level"], first["logger"]) == ("info", "trnport.core.x")
    assert second["event"] == "loaded 5 GiB"
    assert "ValueError: boom" in third["exception"]
    assert theirs.endswith("theirs")
    assert not theirs.startswith("{")


def test_the_format_survives_vllms_own_configuration(stream, monkeypatch):
    """vLLM configures its loggers in every process, and takes handlers off those below."""
    from vllm.config.logging import LoggingConfig
    from vllm.logger import configure_logging
    from vllm.platforms import current_platform

    assert type(current_platform).__name__ == "NeuronPlatform"
    monkeypatch.setenv("TRNPORT_LOG_FORMAT", "json")
    our_log.configure_logs()
    logging.getLogger("vllm.trnport").handlers.clear()
    configure_logging(LoggingConfig())
    (handler,) = logging.getLogger("vllm.trnport").handlers
    assert isinstance(handler.formatter, our_log.JsonFormatter)
    logging.getLogger("vllm").handlers[0].setStream(stream)


def test_a_scripts_own_structlog_is_left_alone(stream):
    seen = []

    def keep(_logger, _method, event):
        seen.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    our_log.configure_logs()
    structlog.get_logger("trnport.core.x").info("run", size=3)
    assert seen == [{"event": "run", "size": 3}]
    assert stream.getvalue() == ""


def test_an_unknown_format_is_refused_by_name():
    assert read_environment({}).log_format == "text"
    assert read_environment({"TRNPORT_LOG_FORMAT": "json"}).log_format == "json"
    with pytest.raises(ConfigError, match=r"TRNPORT_LOG_FORMAT='xml'.*text, json"):
        read_environment({"TRNPORT_LOG_FORMAT": "xml"})


def test_an_unknown_format_does_not_silence_the_log(stream, monkeypatch):
    monkeypatch.setenv("TRNPORT_LOG_FORMAT", "xml")
    our_log.configure_logs()
    structlog.get_logger("trnport.core.x").info("still here")
    assert "still here" in stream.getvalue()
