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
from trnport.adapters.vllm.prompt_logprobs import PromptLogprobs
from trnport.adapters.vllm.sampled import SampledRequests
from trnport.adapters.vllm.translate import apply_schedule
from trnport.core.engine.batch import BatchState
from trnport.core.engine.executor import StepExecutor
from trnport.core.engine.result import StepResult

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput


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
        self._prompt_logprobs = PromptLogprobs(
            executor.compute_logits, vllm_config.model_config.logprobs_mode
        )
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
        for request_id in schedule.finished_req_ids:
            self._prompt_logprobs.remove(request_id)
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
        report = self._choose(schedule, grammar, result)
        report.prompt_logprobs_dict = dict(self._score_prompts(schedule, result))
        return report

    def _choose(
        self, schedule: SchedulerOutput, grammar: GrammarOutput | None, result: StepResult
    ) -> ModelRunnerOutput:
        if not result.request_ids:
            return build_output(schedule.num_scheduled_tokens)
        chosen = self._chooser.choose(schedule, grammar, result)
        for request_id, token in zip(chosen.request_ids, chosen.token_ids, strict=True):
            self._batch[request_id].token_ids.append(token)
            self._sampled.append(request_id, token)
        return build_output(schedule.num_scheduled_tokens, *chosen)

    def _score_prompts(
        self, schedule: SchedulerOutput, result: StepResult
    ) -> dict[str, LogprobsTensors]:
        wanted = {
            request_id: self._sampled[request_id].params.prompt_logprobs
            for request_id in schedule.num_scheduled_tokens
            if self._sampled[request_id].params.prompt_logprobs is not None
        }
        return self._prompt_logprobs.step(self._batch, result.hidden_states, wanted)

    def _run(self, schedule: SchedulerOutput, grammar: GrammarOutput | None = None) -> StepResult:
        masks = grammar_masks(grammar, self._vocab_size)
        return self._executor.execute(self._batch, schedule.num_scheduled_tokens, masks)
