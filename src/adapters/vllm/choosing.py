# SPDX-License-Identifier: Apache-2.0
"""Choose a step's tokens: those the program drew, the others with vLLM's sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.v1.outputs import SamplerOutput

from trnport.adapters.vllm.capabilities import Capabilities
from trnport.adapters.vllm.sampled import SampledRequests
from trnport.adapters.vllm.sampling import HostSampler, apply_grammar
from trnport.core.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput

    from trnport.core.engine.result import StepResult

Chosen = tuple[list[str], SamplerOutput]
"""n request ids, and the sampler's n rows."""


class TokenChooser:
    """Knows for each request who samples it; that never changes during its life."""

    def __init__(
        self, vllm_config: VllmConfig, capabilities: Capabilities, sampled: SampledRequests
    ) -> None:
        """Start without requests.

        Raises:
            ConfigError: The configuration has logits processors, and programs return no logits.
        """
        self._capabilities = capabilities
        self._sampled = sampled
        self._sampler = HostSampler(vllm_config, sampled)
        if self._sampler.has_custom_processors and not capabilities.returns_logits:
            raise ConfigError(
                "max_logprobs=0 with on_device_sampling_config returns no logits, and the custom "
                "logits processors need them; leave out --max-logprobs 0 or the processors"
            )

    def choose(
        self, schedule: SchedulerOutput, grammar: GrammarOutput | None, result: StepResult
    ) -> Chosen:
        """One token for each of a result's requests.

        Rows sampled on the host come first: logprobs belong to the first rows.

        Args:
            schedule: The step's schedule.
            grammar: Masks of constrained requests; programs that sample have applied them.
            result: At least one request's logits or tokens; logits may be changed in place.
        """
        if result.token_ids is None:
            return self._on_host(schedule, grammar, result, list(range(len(result.request_ids))))
        host = [i for i, name in enumerate(result.request_ids) if self._needs_host(name)]
        device = [i for i in range(len(result.request_ids)) if i not in set(host)]
        ids = [result.request_ids[i] for i in device]
        drawn = SamplerOutput(result.token_ids[device][:, None], None)
        if not host:
            return ids, drawn
        host_ids, output = self._on_host(schedule, grammar, result, host)
        tokens = torch.cat([output.sampled_token_ids.to(torch.int64), drawn.sampled_token_ids])
        return host_ids + ids, SamplerOutput(tokens, output.logprobs_tensors)

    def _needs_host(self, request_id: str) -> bool:
        if self._sampler.has_custom_processors:
            return True
        params = self._sampled[request_id].params
        return self._capabilities.host_parameter(params) is not None

    def _on_host(
        self,
        schedule: SchedulerOutput,
        grammar: GrammarOutput | None,
        result: StepResult,
        rows: list[int],
    ) -> Chosen:
        ids = [result.request_ids[row] for row in rows]
        logits = result.require_logits()[rows]
        apply_grammar(schedule, grammar, ids, logits)
        return ids, self._sampler.sample(ids, logits)
