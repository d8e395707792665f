# SPDX-License-Identifier: Apache-2.0
"""From vLLM's SchedulerOutput to changes of the core's batch.

The scheduler sends each request in full once, then only what changed: appended blocks, and
counts. Sampled tokens are not sent back, since the worker that sampled them knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trnport.adapters.vllm.sampled import SampledRequests
from trnport.core.engine.batch import BatchState, Request
from trnport.core.engine.sampling import SamplingParams
from trnport.core.errors import RequestError

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput


def apply_schedule(batch: BatchState, sampled: SampledRequests, schedule: SchedulerOutput) -> None:
    """Bring batch and sampling state up to date with one scheduling step.

    Args:
        batch: The core's requests; changed.
        sampled: What sampling keeps of them; changed alike.
        schedule: The scheduler's message.
    """
    # Finished ones first: an aborted id may come back as a new request in the same message.
    for request_id in schedule.finished_req_ids:
        batch.remove(request_id)
        sampled.remove(request_id)
    for new in schedule.scheduled_new_reqs:
        _add(batch, sampled, new)
    _update(batch, sampled, schedule.scheduled_cached_reqs)


def core_sampling(params: Any) -> SamplingParams:
    """The part of vLLM's ``SamplingParams`` that the core knows."""
    return SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=params.seed,
    )


def _add(batch: BatchState, sampled: SampledRequests, new: NewRequestData) -> None:
    prompt = new.prompt_token_ids
    if prompt is None or new.sampling_params is None:
        raise RequestError(f"request {new.req_id!r} is not text generation from token ids")
    # A resumed request can be sent in full again, with what it has generated. Its id is then
    # known, and its random stream must go on where it stopped.
    tokens = list(new.prefill_token_ids or prompt)
    state = sampled.add(new.req_id, new.sampling_params, list(prompt), tokens[len(prompt) :])
    batch.remove(new.req_id)
    batch.add(
        Request(
            request_id=new.req_id,
            token_ids=tokens,
            num_prompt_tokens=len(prompt),
            sampling=core_sampling(new.sampling_params),
            block_ids=list(_only_group(new.block_ids)),
            num_computed_tokens=new.num_computed_tokens,
            random_stream=state.random_stream,
        )
    )


def _update(batch: BatchState, sampled: SampledRequests, cached: CachedRequestData) -> None:
    for i, request_id in enumerate(cached.req_ids):
        request = batch[request_id]
        new_blocks = cached.new_block_ids[i]
        if request_id in cached.resumed_req_ids:
            # Preempted: its blocks were given away, and these are all it has now.
            request.block_ids = list(_only_group(new_blocks or ()))
        elif new_blocks is not None:
            request.block_ids.extend(_only_group(new_blocks))
        request.num_computed_tokens = cached.num_computed_tokens[i]
        _restore_tokens(request, cached.all_token_ids.get(request_id), cached.num_output_tokens[i])
        sampled.restore(request_id, request.token_ids[request.num_prompt_tokens :])


def _restore_tokens(request: Request, tokens: list[int] | None, num_output_tokens: int) -> None:
    """Agree with the scheduler on the tokens of a request.

    Args:
        request: Changed.
        tokens: All tokens it knows, sent for requests that sat out the last step; else None.
        num_output_tokens: Output tokens the scheduler counts, with those of steps it has not
            heard of yet. Fewer than ours means that it took some back.
    """
    if tokens is not None:
        # Not the tail: a step that is under way for the scheduler may have been sampled here.
        request.token_ids[: len(tokens)] = tokens
    del request.token_ids[request.num_prompt_tokens + num_output_tokens :]


def _only_group(block_ids: Sequence[Sequence[int]]) -> Sequence[int]:
    if len(block_ids) != 1:
        raise RequestError(f"expected one group of KV blocks, got {len(block_ids)}")
    return block_ids[0]
