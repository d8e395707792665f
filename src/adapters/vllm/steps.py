# SPDX-License-Identifier: Apache-2.0
"""Run one step after the other: translate, execute, sample, report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

from trnport.adapters.vllm.capabilities import Capabilities
from trnport.adapters.vllm.choosing import TokenChooser
from trnport.adapters.vllm.masks import grammar_masks
from trnport.adapters.vllm.output import build_output
from trnport.adapters.vllm.sampled import SampledRequests
from trnport.adapters.vllm.translate import apply_schedule
from trnport.core.engine.batch import BatchState
from trnport.core.engine.executor import StepExecutor, StepResult

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput


@attrs.frozen(eq=False)
class _Step:
    """A step between its two halves; without a result its programs have yet to run."""

    schedule: SchedulerOutput
    result: StepResult | None


class StepRunner:
    """The state of a worker's steps.

    vLLM splits a step so that grammars can be advanced while the model runs: ``execute``
    computes logits, ``sample`` takes the grammar's masks and chooses tokens. Programs that
    sample need the masks before they run, so a step with constrained requests runs in
    ``sample``.
    """

    def __init__(self, vllm_config: VllmConfig, executor: StepExecutor) -> None:
        self._executor = executor
        self._vocab_size = vllm_config.model_config.get_vocab_size()
        self._capabilities = Capabilities.of(vllm_config)
        self._batch = BatchState()
        self._sampled = SampledRequests(vllm_config.model_config.seed)
        self._chooser = TokenChooser(vllm_config, self._capabilities, self._sampled)
        self._step: _Step | None = None

    @property
    def num_requests(self) -> int:
        """Requests held, for tests of leaks."""
        return len(self._batch)

    @torch.inference_mode()
    def execute(self, schedule: SchedulerOutput) -> bool:
        """Run the model.

        Returns:
            Whether anything was scheduled, so that :meth:`sample` has to follow.
        """
        apply_schedule(self._batch, self._sampled, schedule)
        if not schedule.num_scheduled_tokens:
            return False
        waits = self._capabilities.masked and schedule.has_structured_output_requests
        self._step = _Step(schedule, None if waits else self._run(schedule))
        return True

    @torch.inference_mode()
    def sample(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        """Choose tokens, record them and report the step."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("there is no step to sample from; execute comes first")
        schedule = step.schedule
        result = step.result or self._run(schedule, grammar)
        if not result.request_ids:
            return build_output(schedule.num_scheduled_tokens, [], None)
        request_ids, output = self._chooser.choose(schedule, grammar, result)
        for request_id, (token,) in zip(
            request_ids, output.sampled_token_ids.tolist(), strict=True
        ):
            self._batch[request_id].token_ids.append(token)
            self._sampled.append(request_id, token)
        return build_output(schedule.num_scheduled_tokens, request_ids, output)

    def _run(self, schedule: SchedulerOutput, grammar: GrammarOutput | None = None) -> StepResult:
        masks = grammar_masks(grammar, self._vocab_size)
        return self._executor.execute(self._batch, schedule.num_scheduled_tokens, masks)
