# SPDX-License-Identifier: Apache-2.0
"""From sampled tokens to vLLM's ModelRunnerOutput."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.outputs import ModelRunnerOutput, SamplerOutput


def build_output(
    scheduled_ids: Iterable[str], sampled_ids: Sequence[str], sampler_output: SamplerOutput | None
) -> ModelRunnerOutput:
    """Report one step.

    Args:
        scheduled_ids: Every request that was scheduled; those in the middle of their prompt
            get no token.
        sampled_ids: n requests with a new token, in the order of the sampler's rows.
        sampler_output: The sampler's n rows; None when n is 0.
    """
    from vllm.v1.outputs import ModelRunnerOutput

    # Logprobs are looked up by a request's index, so sampled requests come first.
    has_token = set(sampled_ids)
    order = [*sampled_ids, *(i for i in scheduled_ids if i not in has_token)]
    tokens: list[list[int]] = [[] for _ in order]
    logprobs = None
    if sampler_output is not None:
        tokens[: len(sampled_ids)] = sampler_output.sampled_token_ids.tolist()
        if sampler_output.logprobs_tensors is not None:
            logprobs = sampler_output.logprobs_tensors.tolists()
    return ModelRunnerOutput(
        req_ids=order,
        req_id_to_index={request_id: i for i, request_id in enumerate(order)},
        sampled_token_ids=tokens,
        logprobs=logprobs,
    )
