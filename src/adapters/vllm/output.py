# SPDX-License-Identifier: Apache-2.0
"""From sampled tokens to vLLM's ModelRunnerOutput."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput


def build_output(
    scheduled_ids: Iterable[str],
    sampled_ids: Sequence[str] = (),
    token_ids: Sequence[int] = (),
    logprobs: LogprobsTensors | None = None,
) -> ModelRunnerOutput:
    """Report one step.

    Args:
        scheduled_ids: Every request that was scheduled; those in the middle of their prompt
            get no token.
        sampled_ids: n requests with a new token.
        token_ids: n tokens.
        logprobs: Rows of the first of these requests; None if nobody asked for any.
    """
    from vllm.v1.outputs import ModelRunnerOutput

    # Logprobs are looked up by a request's index, so sampled requests come first.
    has_token = set(sampled_ids)
    order = [*sampled_ids, *(i for i in scheduled_ids if i not in has_token)]
    tokens = [[token] for token in token_ids]
    tokens += ([] for _ in range(len(order) - len(tokens)))
    return ModelRunnerOutput(
        req_ids=order,
        req_id_to_index={request_id: i for i, request_id in enumerate(order)},
        sampled_token_ids=tokens,
        logprobs=None if logprobs is None else logprobs.tolists(),
    )
