# SPDX-License-Identifier: Apache-2.0
"""A server that was told to stop should not log that as a failure.

vLLM 0.33 closes the engine's socket before it cancels the task that reads from it. Depending
on which thread is faster, the task then logs an EngineDeadError with a traceback, in a server
that is stopping as it should. The filter here drops that one record, and only after a stop
was asked for.
"""

from __future__ import annotations

import logging

STOP_REQUESTED = "[shutdown] API server: shutdown triggered"
LAUNCHER = "vllm.entrypoints.launchers.launcher"
READER = "vllm.v1.engine.async_llm"


class StopFilter(logging.Filter):
    """Watches for the request to stop, then hides the reader's EngineDeadError."""

    def __init__(self) -> None:
        super().__init__()
        self._stopping = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the record."""
        if record.name == LAUNCHER and record.msg == STOP_REQUESTED:
            self._stopping = True
        error = record.exc_info[0] if record.exc_info else None
        is_end_of_engine = error is not None and error.__name__ == "EngineDeadError"
        return not (self._stopping and record.name == READER and is_end_of_engine)


def install_stop_filter() -> None:
    """Install the filter once in this process."""
    reader = logging.getLogger(READER)
    if any(isinstance(known, StopFilter) for known in reader.filters):
        return
    stop_filter = StopFilter()
    for name in (LAUNCHER, READER):
        logging.getLogger(name).addFilter(stop_filter)
