# SPDX-License-Identifier: Apache-2.0
"""Which requests can be served; the others are refused by name, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnport.adapters.vllm.capabilities import Capabilities
from trnport.adapters.vllm.embeds import embeds_problem

UNSUPPORTED_PARAMETERS = (
    ("prompt_logprob_token_ids", "ask for the most likely tokens with prompt_logprobs"),
    ("logprob_token_ids", "ask for the most likely tokens with logprobs"),
    ("thinking_token_budget", "limit the output with max_tokens instead"),
    ("trace_decode_token_ids", "leave it out"),
)
"""Sampling parameters that would have no effect, and the way out."""

SEEDS = range(-(2**63), 2**64)
"""Seeds that torch takes; vLLM does not check, and the worker would die of any other one."""


def check_request(engine_input: Any, params: Any, capabilities: Capabilities) -> None:
    """Refuse a request that this release cannot serve as asked.

    Args:
        engine_input: vLLM's processed prompt, a mapping with a "type".
        params: ``SamplingParams`` or ``PoolingParams``.
        capabilities: What the engine can do.

    Raises:
        VLLMValidationError: vLLM's HTTP server answers 400 and keeps running.
    """
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams

    kind = engine_input["type"]
    if kind not in ("token", "embeds"):
        raise VLLMValidationError(
            f"prompts of type {kind!r} are not supported; send text or token ids"
        )
    if kind == "token":
        _check_token_ids(engine_input["prompt_token_ids"], capabilities.vocab_size)
    else:
        problem = embeds_problem(engine_input, capabilities.hidden_size, capabilities.vocab_size)
        if problem:
            raise VLLMValidationError(problem, parameter="prompt_embeds")
    if not isinstance(params, SamplingParams):
        # vLLM has compared its task with those of the engine.
        return
    if params.prompt_logprobs is not None:
        _check_prompt_logprobs(kind, params, capabilities)
    for name, way_out in UNSUPPORTED_PARAMETERS:
        value = getattr(params, name)
        if value is not None:
            raise VLLMValidationError(f"{name} is not supported; {way_out}", parameter=name)
    refusal = capabilities.refusal(params)
    if refusal is not None:
        raise VLLMValidationError(refusal[1], parameter=refusal[0])
    if params.seed is not None and params.seed not in SEEDS:
        raise VLLMValidationError(
            "seed must be an integer of at most 64 bits", parameter="seed", value=params.seed
        )


def _check_token_ids(token_ids: Sequence[int], vocab_size: int | None) -> None:
    """Refuse ids that the model has no embedding for.

    vLLM allows those of its tokenizer as well, to which prompt embeddings add a placeholder.
    """
    from vllm.exceptions import VLLMValidationError

    largest = max(token_ids, default=0)
    if vocab_size is not None and largest >= vocab_size:
        raise VLLMValidationError(
            f"token id {largest} is out of vocabulary: the model has ids below {vocab_size}",
            parameter="prompt_token_ids",
            value=largest,
        )


def _check_prompt_logprobs(kind: str, params: Any, capabilities: Capabilities) -> None:
    from vllm.exceptions import VLLMValidationError

    name = "prompt_logprobs"
    if not capabilities.scores_prompts:
        raise VLLMValidationError(
            "prompt_logprobs (and echo with logprobs) are switched off in this engine; leave them "
            "out, or start it without neuron_config.enable_prompt_logprobs=false",
            parameter=name,
        )
    if kind == "embeds":
        raise VLLMValidationError(
            "prompt_logprobs need token ids and prompt_embeds have none; leave one of them out",
            parameter=name,
        )
    if params.skip_reading_prefix_cache is False:
        raise VLLMValidationError(
            "prompt_logprobs need every token of the prompt to be computed; leave out "
            "skip_reading_prefix_cache=False",
            parameter=name,
        )
