# SPDX-License-Identifier: Apache-2.0
"""What an engine can do for a request."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import attrs

from trnport.adapters.vllm.sampled import GREEDY_BELOW
from trnport.adapters.vllm.settings import neuron_config_of

_HOST_ONLY: MappingProxyType[str, Callable[[Any], bool]] = MappingProxyType(
    {
        "logprobs": lambda value: value is not None,
        "presence_penalty": lambda value: value != 0,
        "frequency_penalty": lambda value: value != 0,
        "repetition_penalty": lambda value: value != 1,
        "min_p": lambda value: value > 0,
        "min_tokens": lambda value: value > 0,
        "logit_bias": bool,
        "allowed_token_ids": bool,
        "bad_words": bool,
    }
)
"""Sampling parameters that need the logits on the host, and when they do."""


@attrs.frozen
class Capabilities:
    """What requests are checked against.

    Attributes:
        on_device: Programs sample.
        all_greedy: They only take the largest logit.
        masked: They take a mask of allowed tokens.
        returns_logits: They return logits as well, so that the host can sample some rows.
        scores_prompts: ``enable_prompt_logprobs``.
        hidden_size: Width of the model's embeddings; None when unknown.
        vocab_size: Token ids are below it; None when unknown.
    """

    on_device: bool = False
    all_greedy: bool = False
    masked: bool = False
    returns_logits: bool = True
    scores_prompts: bool = True
    hidden_size: int | None = None
    vocab_size: int | None = None

    @classmethod
    def of(cls, vllm_config: Any) -> Capabilities:
        """Those that a configuration with a model asks for.

        Raises:
            ConfigError: As :func:`neuron_config_of`.
        """
        config, model = neuron_config_of(vllm_config), vllm_config.model_config
        sampling = config.on_device_sampling_config
        return cls(
            on_device=sampling is not None,
            all_greedy=sampling is not None and sampling.all_greedy,
            masked=sampling is not None and config.enable_structured_outputs,
            returns_logits=sampling is None or model.max_logprobs != 0,
            scores_prompts=config.enable_prompt_logprobs,
            hidden_size=model.get_hidden_size(),
            vocab_size=model.get_vocab_size(),
        )

    def host_parameter(self, params: Any) -> str | None:
        """The first parameter of a request that programs cannot follow; None if there is none.

        Args:
            params: vLLM's ``SamplingParams``.
        """
        for name, needs_host in _HOST_ONLY.items():
            value = getattr(params, name)
            if value is not None and needs_host(value):
                return name
        if self.all_greedy and params.temperature >= GREEDY_BELOW:
            return "temperature"
        return None

    def refusal(self, params: Any) -> tuple[str, str] | None:
        """The parameter for which a request has to be refused, and a message with the way out."""
        if not self.on_device:
            return None
        if params.structured_outputs is not None and not self.masked:
            return "structured_outputs", (
                "structured_outputs is not available on this server, whose programs sample "
                'without a mask; restart it with "enable_structured_outputs": true in neuron_config'
            )
        name = self.host_parameter(params)
        if name is None or self.returns_logits:
            return None
        return name, (
            f"{name}={getattr(params, name)!r} is not available on this server, whose programs "
            "sample and return no logits; leave it out, or restart without --max-logprobs 0"
        )
