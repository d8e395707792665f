# SPDX-License-Identifier: Apache-2.0
"""Who goes first when prompts and generations wait: ``neuron_config.schedule_policy``.

vLLM's own scheduler does the work. These classes only narrow what it may take in one step:
how many new tokens a request gets, and whether more requests are admitted.

A *generation* is a request with cached tokens and one more to compute: it takes the decode
program. Anything else is a *prompt*, whose chunks take prefill programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from trnport.adapters.vllm.settings import neuron_config_of
from trnport.core.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler as _Base
    from vllm.v1.request import Request
else:
    _Base = object


@attrs.define
class _Step:
    """What one step still allows.

    Attributes:
        prompt_tokens: Tokens that the one chunk of a prompt may have; None for no limit on
            prompts, 0 once the chunk is given.
        hold_generations: Whether running generations sit the step out.
    """

    prompt_tokens: int | None = None
    hold_generations: bool = False


class PolicyMixin(_Base):
    """Narrows a scheduler of vLLM to a policy."""

    max_num_active_reqs: int
    prev_step_scheduled_req_ids: set[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = neuron_config_of(self.vllm_config)
        self._schedule_policy = settings.schedule_policy
        self._smallest_chunk = settings.num_batched_tokens_buckets[0]
        self._step = _Step()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Choose what the next step computes."""
        generates = any(is_generation(request) for request in self.running)
        if not generates or self._schedule_policy == "mixed":
            return self._within(_Step(), throttle_prefills)
        if self._schedule_policy == "decode_first":
            # The token budget goes to the front of the queue. A stable sort; the last ones are
            # preempted first, so prompts never take blocks from generations.
            self.running.sort(key=lambda request: not is_generation(request))
            return self._within(_Step(prompt_tokens=self._smallest_chunk), throttle_prefills)
        return self._prompts_before_generations(throttle_prefills)

    def _prompts_before_generations(self, throttle_prefills: bool) -> SchedulerOutput:
        if not self._prompts_may_advance():
            return self._within(_Step(), throttle_prefills)
        before = set(self.prev_step_scheduled_req_ids)
        prompts = self._within(_Step(hold_generations=True), throttle_prefills)
        if prompts.total_num_scheduled_tokens:
            return prompts
        # No memory for them. An empty step tells the worker nothing but who is gone, and counts
        # for nobody as a step that was sat out.
        self.prev_step_scheduled_req_ids = before
        step = self._within(_Step(), throttle_prefills)
        step.finished_req_ids |= prompts.finished_req_ids
        step.preempted_req_ids = (step.preempted_req_ids or set()) | (
            prompts.preempted_req_ids or set()
        )
        return step

    def _prompts_may_advance(self) -> bool:
        if not all(is_generation(request) for request in self.running):
            return True
        return bool(self.waiting) and len(self.running) < self.max_num_active_reqs

    def _within(self, step: _Step, throttle_prefills: bool) -> SchedulerOutput:
        self._step, limit = step, self.max_num_active_reqs
        try:
            return super().schedule(throttle_prefills)
        finally:
            self._step, self.max_num_active_reqs = _Step(), limit

    def _reserve_prefill_lookahead(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """Where vLLM asks how many tokens a request gets; 0 passes it over."""
        tokens = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        if is_generation(request, num_computed_tokens):
            running = request.status == RequestStatus.RUNNING
            return 0 if running and self._step.hold_generations else tokens
        if self._step.prompt_tokens is None:
            return tokens
        tokens = min(tokens, self._step.prompt_tokens)
        self._step.prompt_tokens = 0
        self.max_num_active_reqs = 0  # admits nobody else in this step
        return tokens


class PolicyScheduler(PolicyMixin, Scheduler):
    """vLLM's scheduler with a policy."""


class PolicyAsyncScheduler(PolicyMixin, AsyncScheduler):
    """vLLM's scheduler for overlapping steps, with a policy."""


def is_generation(request: Request, num_computed_tokens: int | None = None) -> bool:
    """Whether all but the last known token of a request is cached.

    Args:
        request: vLLM's request.
        num_computed_tokens: Its computed tokens, where vLLM has not recorded them yet.
    """
    computed = request.num_computed_tokens if num_computed_tokens is None else num_computed_tokens
    return computed > 0 and request.num_tokens - computed <= 1


def choose_scheduler(vllm_config: VllmConfig, policy: str) -> None:
    """Set the scheduler that a policy needs; vLLM's own, whatever it is, serves "mixed".

    Raises:
        ConfigError: The user has chosen another scheduler as well.
    """
    config = vllm_config.scheduler_config
    ours = {name: f"{__name__}.{name}" for name in ("PolicyScheduler", "PolicyAsyncScheduler")}
    if config.scheduler_cls in ours.values():
        config.scheduler_cls = None
    if policy == "mixed":
        return
    if config.scheduler_cls is not None:
        raise ConfigError(
            f"schedule_policy={policy!r} and scheduler_cls={config.scheduler_cls!r} exclude each "
            "other; leave one of them out"
        )
    config.scheduler_cls = ours[
        "PolicyAsyncScheduler" if config.async_scheduling else "PolicyScheduler"
    ]
