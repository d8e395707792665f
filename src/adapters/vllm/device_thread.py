# SPDX-License-Identifier: Apache-2.0
"""Steps on a thread of their own, so that the next one is scheduled while this one runs.

vLLM's asynchronous scheduler hands out a step before it has seen the tokens of the one before.
Nothing here has to guess them: the thread takes everything in order, and by the time it comes
to a step, the tokens of all earlier steps are in its own batch.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.v1.outputs import AsyncModelRunnerOutput

from trnport.adapters.vllm.log import plugin_logger

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

logger = plugin_logger(__name__)


class PendingOutput(AsyncModelRunnerOutput):
    """A step's output that is still being computed."""

    def __init__(self, future: Future[ModelRunnerOutput]) -> None:
        self._future = future

    def get_output(self) -> ModelRunnerOutput:
        """Wait for it.

        Raises:
            Exception: What made the step fail.
        """
        return self._future.result()

    def get_kv_connector_output(self) -> KVConnectorOutput | None:
        """There is no KV transfer."""
        return None


class DeviceThread:
    """Both halves of every step, one after the other, in the order in which they were asked for.

    After a failure the state of the batch is unknown: every later call fails with it.

    Args:
        execute: First half of a step: True means that the second has to follow.
        sample: Second half.
        on_failure: Called once, on the thread, with the first failure.
    """

    def __init__(
        self,
        execute: Callable[[SchedulerOutput], bool],
        sample: Callable[[GrammarOutput | None], ModelRunnerOutput],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._execute = execute
        self._sample = sample
        self._on_failure = on_failure
        self._failure: Exception | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trnport-steps")

    def execute(self, schedule: SchedulerOutput) -> bool:
        """Queue the first half of a step; returns at once, unless nothing was scheduled.

        Returns:
            Whether the second half has to follow.

        Raises:
            Exception: An earlier step has failed.
        """
        if self._failure is not None:
            raise self._failure
        future = self._thread.submit(self._guarded, self._execute, schedule)
        if schedule.num_scheduled_tokens:
            return True
        future.result()
        return False

    def sample(self, grammar: GrammarOutput | None) -> PendingOutput:
        """Queue the second half of the step that was queued last."""
        if grammar is not None:
            # vLLM fills one and the same array for every step, perhaps before this one is run.
            grammar = replace(grammar, grammar_bitmask=grammar.grammar_bitmask.copy())
        return PendingOutput(self._thread.submit(self._guarded, self._sample, grammar))

    def close(self) -> None:
        """Drop what has not begun and wait for what has."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _guarded(self, function: Callable[[Any], Any], argument: Any) -> Any:
        if self._failure is not None:
            raise self._failure
        try:
            return function(argument)
        except Exception as error:
            logger.exception("a step failed")
            self._failure = error
            self._on_failure(error)
            raise
