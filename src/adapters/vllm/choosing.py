# SPDX-License-Identifier: Apache-2.0
"""Choose a step's tokens: those the program drew, the others with vLLM's sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trnport.adapters.vllm.capabilities import Capabilities
from trnport.adapters.vllm.sampled import SampledRequests
from trnport.adapters.vllm.sampling import HostSampler, apply_grammar
from trnport.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.outputs import LogprobsTensors

    from trnport.core.engine.result import StepResult


class Chosen(NamedTuple):
    """The next tokens of n requests.

    Attributes:
        request_ids: n ids.
        token_ids: n tokens.
        logprobs: Rows of the first requests; None if nobody asked for any.
    """

    request_ids: list[str]
    token_ids: list[int]
    logprobs: LogprobsTensors | None = None


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
        ids = result.request_ids
        if result.token_ids is None:
            return self._on_host(schedule, grammar, ids, result.require_logits())
        drawn = result.token_ids.tolist()
        host = [row for row, name in enumerate(ids) if self._needs_host(name)]
        if not host:
            return Chosen(ids, drawn)
        logits = result.require_logits()[host]
        chosen = self._on_host(schedule, grammar, [ids[row] for row in host], logits)
        device = [row for row in range(len(ids)) if row not in set(host)]
        return Chosen(
            chosen.request_ids + [ids[row] for row in device],
            chosen.token_ids + [drawn[row] for row in device],
            chosen.logprobs,
        )

    def _needs_host(self, request_id: str) -> bool:
        if self._sampler.has_custom_processors:
            return True
        params = self._sampled[request_id].params
        return self._capabilities.host_parameter(params) is not None

    def _on_host(
        self,
        schedule: SchedulerOutput,
        grammar: GrammarOutput | None,
        ids: list[str],
        logits: Tensor,
    ) -> Chosen:
        apply_grammar(schedule, grammar, ids, logits)
        output = self._sampler.sample(ids, logits)
        return Chosen(ids, output.sampled_token_ids.flatten().tolist(), output.logprobs_tensors)
