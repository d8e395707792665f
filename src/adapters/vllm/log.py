# SPDX-License-Identifier: Apache-2.0
"""Our log lines: where vLLM's own messages show up, with values by name.

Core and models log through structlog, which this module sends to vLLM's logger. vLLM decides
on level, stream and the head of a line; TRNPORT_LOG_FORMAT=json makes one JSON object of each
of our lines instead.
"""

from __future__ import annotations

import json
import logging
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any

import structlog

from trnport.adapters.vllm.env import LOG_FORMATS, read_environment
from trnport.core.errors import ConfigError

ROOT = "vllm.trnport"
"""vLLM configures handlers and levels for the logger "vllm" and its children only, so ours is
named as one of them."""

FIELDS = "trnport_fields"
"""Attribute of a log record that holds a line's values by name."""

# From the caller to the standard logger: three frames of structlog.
_STACK_LEVEL = 4


def plugin_logger(name: str) -> Any:
    """A vLLM logger for one of our modules.

    Args:
        name: The module's ``__name__``.
    """
    from vllm.logger import init_logger

    return init_logger(f"vllm.{name}")


def configure_logs() -> None:
    """Send structlog's lines to vLLM's logger and choose their format.

    Idempotent, and called again whenever vLLM has configured its loggers, which undoes what it
    finds on loggers below its own. A script that has configured structlog itself keeps that.
    """
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.contextvars.merge_contextvars,
                _to_standard_logging,
            ],
            logger_factory=_logger_of,
            wrapper_class=structlog.stdlib.BoundLogger,
        )
    _choose_format(_log_format())


class JsonFormatter(logging.Formatter):
    """One JSON object for a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger, process, event; then the line's values and its traceback."""
        fields = dict(getattr(record, FIELDS, {}))
        found = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("vllm."),
            "process": getattr(record, "vllm_process_name", record.processName),
            "pid": record.process,
            "event": fields.pop("event", None) or record.getMessage(),
            **fields,
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


def render_text(event: MutableMapping[str, Any]) -> str:
    """``event key=value ...``; a list is joined by commas."""
    values = {key: value for key, value in event.items() if key != "event"}
    return " ".join([str(event.get("event", "")), *(f"{k}={_text(v)}" for k, v in values.items())])


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(_text(item) for item in value)
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    # Clients choose request ids. Quoted, one of them cannot pretend to be more than a value.
    plain = text.isprintable() and not set(text) & set(' ="')
    return text if plain else repr(text)


def _to_standard_logging(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The arguments of the standard logger's method: structlog's last step."""
    exc_info = event.pop("exc_info", None)
    # Not a format string: whatever percent signs there are came with a value.
    return ("%s", render_text(event)), {
        "exc_info": exc_info,
        "extra": {FIELDS: dict(event)},
        "stacklevel": _STACK_LEVEL,
    }


def _logger_of(*names: str) -> Any:
    return plugin_logger(names[0] if names else "trnport")


def _log_format() -> str:
    try:
        return read_environment().log_format
    except ConfigError:
        return LOG_FORMATS[0]  # the platform refuses to start, with the same error


def _choose_format(name: str) -> None:
    ours = logging.getLogger(ROOT)
    parents = [
        handler
        for handler in logging.getLogger("vllm").handlers
        if isinstance(handler, logging.StreamHandler)
    ]
    if name != "json" or not parents:  # without handlers, logging is the script's own business
        return
    if not any(isinstance(handler.formatter, JsonFormatter) for handler in ours.handlers):
        handler = logging.StreamHandler(parents[0].stream)
        handler.setFormatter(JsonFormatter())
        ours.addHandler(handler)
    ours.propagate = False
