# SPDX-License-Identifier: Apache-2.0
"""Run one step after the other: translate, execute, sample, report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from trnport.adapters.vllm.output import build_output
from trnport.adapters.vllm.prompt_logprobs import PromptLogprobs
from trnport.adapters.vllm.sampled import SampledRequests
from trnport.adapters.vllm.sampling import HostSampler, apply_grammar
from trnport.adapters.vllm.translate import apply_schedule
from trnport.core.engine.batch import BatchState
from trnport.core.engine.executor import StepExecutor
from trnport.core.engine.hidden import HiddenRows

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput


@attrs.frozen(eq=False)
class _Computed:
    """A step between its two halves."""

    schedule: SchedulerOutput
    request_ids: list[str]
    logits: Tensor
    hidden_states: dict[str, HiddenRows]


class StepRunner:
    """The state of a worker's steps.

    vLLM splits a step so that grammars can be advanced while the model runs: ``execute``
    computes logits, ``sample`` takes the grammar's masks and chooses tokens.
    """

    def __init__(self, vllm_config: VllmConfig, executor: StepExecutor) -> None:
        self._executor = executor
        self._batch = BatchState()
        self._sampled = SampledRequests()
        self._sampler = HostSampler(vllm_config, self._sampled)
        self._prompt_logprobs = PromptLogprobs(
            executor.compute_logits, vllm_config.model_config.logprobs_mode
        )
        self._computed: _Computed | None = None

    @property
    def num_requests(self) -> int:
        """Requests held, for tests of leaks."""
        return len(self._batch)

    @torch.inference_mode()
    def execute(self, schedule: SchedulerOutput) -> bool:
        """Run the model.

        Returns:
            Whether anything was computed, so that :meth:`sample` has to follow.
        """
        apply_schedule(self._batch, self._sampled, schedule)
        for request_id in schedule.finished_req_ids:
            self._prompt_logprobs.remove(request_id)
        if not schedule.num_scheduled_tokens:
            return False
        result = self._executor.execute(self._batch, schedule.num_scheduled_tokens)
        self._computed = _Computed(
            schedule, result.request_ids, result.logits, result.hidden_states
        )
        return True

    @torch.inference_mode()
    def sample(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        """Choose tokens, record them and report the step."""
        computed, self._computed = self._computed, None
        if computed is None:
            raise RuntimeError("there is no step to sample from; execute comes first")
        output = None
        if computed.request_ids:
            apply_grammar(computed.schedule, grammar, computed.request_ids, computed.logits)
            output = self._sampler.sample(computed.request_ids, computed.logits)
            for request_id, (token,) in zip(
                computed.request_ids, output.sampled_token_ids.tolist(), strict=True
            ):
                self._batch[request_id].token_ids.append(token)
                self._sampled.append(request_id, token)
        report = build_output(computed.schedule.num_scheduled_tokens, computed.request_ids, output)
        report.prompt_logprobs_dict = dict(self._score_prompts(computed))
        return report

    def _score_prompts(self, computed: _Computed) -> dict[str, LogprobsTensors]:
        wanted = {
            request_id: self._sampled[request_id].params.prompt_logprobs
            for request_id in computed.schedule.num_scheduled_tokens
            if self._sampled[request_id].params.prompt_logprobs is not None
        }
        return self._prompt_logprobs.step(self._batch, computed.hidden_states, wanted)
