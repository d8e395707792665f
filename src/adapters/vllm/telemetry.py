# SPDX-License-Identifier: Apache-2.0
"""What one worker reports about itself: metrics, a log line for each run, and a summary."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog
from structlog.contextvars import bound_contextvars

from trnport.adapters.vllm import metrics
from trnport.adapters.vllm.env import prometheus_folder
from trnport.adapters.vllm.log import configure_logs, plugin_logger
from trnport.adapters.vllm.metric_folder import metrics_folder
from trnport.adapters.vllm.series import SeriesFiles
from trnport.core.engine.observer import Execution, Observers, StepObserver
from trnport.core.errors import UnseenSignatureError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput

log = structlog.get_logger(__name__)


class Telemetry:
    """Everything a worker tells the outside while it starts, runs and ends."""

    def __init__(self, vllm_config: VllmConfig, rank_id: int) -> None:
        """Open the metrics.

        Args:
            vllm_config: The server's configuration.
            rank_id: Rank on this machine.
        """
        configure_logs()
        self._started = time.monotonic()
        self._rank = rank_id
        self._summary = Summary()
        labels = {
            "model_name": str(vllm_config.model_config.served_model_name),
            "engine": str(vllm_config.parallel_config.data_parallel_index),
            "rank_id": str(rank_id),
        }
        self._series = SeriesFiles(metrics_folder(), labels)
        self.observer: StepObserver = Observers(
            (metrics.MetricsObserver(self._series), RunLog(), self._summary)
        )

    def loaded(self, num_bytes: int, seconds: float) -> None:
        """The model is loaded."""
        self._series.set(metrics.LOAD_SIZE, num_bytes)
        self._series.set(metrics.LOAD_TIME, seconds)

    def allocated(self, num_blocks: int) -> None:
        """The KV cache exists."""
        self._series.set(metrics.KV_BLOCKS, num_blocks)

    def ready(self, *, expects_compilations: bool = False) -> None:
        """Warm-up is over, and programs may still be compiled or may not."""
        self._series.set(metrics.STARTUP, time.monotonic() - self._started)
        self._summary.ready(expects_compilations=expects_compilations)

    @contextmanager
    def step(self, schedule: SchedulerOutput) -> Iterator[None]:
        """Around one step: its lines carry the requests' ids, and so does its failure."""
        self._summary.steps += bool(schedule.num_scheduled_tokens)
        for new in schedule.scheduled_new_reqs:
            self._series.add(metrics.PREFIX_QUERIES, len(new.prompt_token_ids or ()))
            self._series.add(metrics.PREFIX_HITS, new.num_computed_tokens)
        with bound_contextvars(**id_fields(list(schedule.num_scheduled_tokens))):
            try:
                yield
            except Exception as error:
                self._summary.misses += isinstance(error, UnseenSignatureError)
                # vLLM logs the traceback, but not whose step it was.
                log.error("step failed", error=type(error).__name__)  # noqa: TRY400
                raise

    def close(self) -> None:
        """Say what the run was like, and end the series."""
        if self._rank == 0:
            self._summary.log()
        # Among vLLM's files ours have to stay: its collector fails on one that disappears.
        self._series.close(remove=prometheus_folder() is None)


class RunLog:
    """A debug line for each run of a program."""

    def __init__(self) -> None:
        self._logger = plugin_logger(__name__)

    def compiled(self, name: str, seconds: float) -> None:
        """Warm-up reports its progress itself."""

    def executed(self, execution: Execution, seconds: float) -> None:
        """Log sizes, time and requests."""
        if self._logger.isEnabledFor(logging.DEBUG):
            log.debug(
                "program ran",
                program=execution.name,
                tokens=execution.tokens,
                padded_tokens=execution.padded_tokens,
                context=execution.context,
                padded_context=execution.padded_context,
                milliseconds=round(seconds * 1e3, 3),
                **id_fields(list(execution.request_ids)),
            )


class Summary:
    """Counts for the last line of a run."""

    def __init__(self) -> None:
        self.steps = 0
        self.misses = 0
        self._is_ready = False
        self._expects_compilations = False
        self._hits: Counter[str] = Counter()
        self._tokens = 0
        self._padded_tokens = 0

    def ready(self, *, expects_compilations: bool = False) -> None:
        """From here on a new program is one that warm-up missed, unless they are expected."""
        self._is_ready = True
        self._expects_compilations = expects_compilations

    def compiled(self, name: str, seconds: float) -> None:
        """Count a program that warm-up should have compiled."""
        self.misses += self._is_ready and not self._expects_compilations

    def executed(self, execution: Execution, seconds: float) -> None:
        """Count a run."""
        self._hits[execution.name] += 1
        self._tokens += execution.tokens
        self._padded_tokens += execution.padded_tokens

    def log(self) -> None:
        """Log the line, once, if the worker ever was ready."""
        if not self._is_ready:
            return
        self._is_ready = False
        waste = 1 - self._tokens / self._padded_tokens if self._padded_tokens else 0.0
        log.info(
            "end of run",
            steps=self.steps,
            programs_executed=sum(self._hits.values()),
            padding_waste=f"{waste:.1%}",
            most_hit=[f"{name}:{count}" for name, count in self._hits.most_common(3)],
            signature_misses=self.misses,
        )


def id_fields(request_ids: list[str]) -> dict[str, Any]:
    """The field that names a line's requests: ``request_id`` of one, ``request_ids`` of more.

    Both are present, so that one does not show through from an enclosing step.
    """
    if len(request_ids) == 1:
        return {"request_id": request_ids[0], "request_ids": request_ids}
    return {"request_ids": request_ids}
