# SPDX-License-Identifier: Apache-2.0
"""Which requests can be served; the others are refused by name, one at a time."""

from __future__ import annotations

from typing import Any

from trnport.adapters.vllm.capabilities import Capabilities

UNSUPPORTED_PARAMETERS = (
    ("prompt_logprobs", "prompt tokens are not scored; leave it out"),
    ("prompt_logprob_token_ids", "prompt tokens are not scored; leave it out"),
    ("logprob_token_ids", "ask for the most likely tokens with logprobs"),
    ("thinking_token_budget", "limit the output with max_tokens instead"),
    ("trace_decode_token_ids", "leave it out"),
)
"""Sampling parameters that would have no effect, and the way out."""

SEEDS = range(-(2**63), 2**64)
"""Seeds that torch takes; vLLM does not check, and the worker would die of any other one."""


def check_request(
    engine_input: Any,
    params: Any,
    capabilities: Capabilities = Capabilities(),  # noqa: B008
) -> None:
    """Refuse a request that this release cannot serve as asked.

    Args:
        engine_input: vLLM's processed prompt, a mapping with a "type".
        params: ``SamplingParams`` or ``PoolingParams``.
        capabilities: How the engine samples.

    Raises:
        VLLMValidationError: vLLM's HTTP server answers 400 and keeps running.
    """
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams

    kind = engine_input["type"]
    if kind != "token":
        raise VLLMValidationError(
            f"prompts of type {kind!r} are not supported; send text or token ids"
        )
    if not isinstance(params, SamplingParams):
        raise VLLMValidationError("pooling requests are not supported; only generation is")
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
