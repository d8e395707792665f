# SPDX-License-Identifier: Apache-2.0
"""From vLLM's SchedulerOutput to changes of the core's batch.

The scheduler sends each request in full once, then only what changed: appended blocks, and
counts. Sampled tokens are not sent back, since the worker that sampled them knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trnport.adapters.vllm.embeds import known_tokens, prompt_embeds, prompt_tokens
from trnport.adapters.vllm.sampled import SampledRequests
from trnport.core.engine.batch import BatchState, Request
from trnport.core.engine.embeds import PromptEmbeds
from trnport.core.engine.sampling import SamplingParams

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


def prefill_until(params: Any, num_prompt_tokens: int, embeds: PromptEmbeds | None) -> int:
    """Leading tokens of a prompt that need a prefill program even when one comes alone.

    Args:
        params: vLLM's ``SamplingParams``; None for a request that is pooled.
        num_prompt_tokens: Length of the prompt.
        embeds: Embeddings among them.
    """
    if params is None:
        return num_prompt_tokens
    # The last token's hidden state is not scored: the token behind it is sampled.
    scored = 0 if params.prompt_logprobs is None else num_prompt_tokens - 1
    return max(scored, embeds.end if embeds else 0)


def _add(batch: BatchState, sampled: SampledRequests, new: NewRequestData) -> None:
    prompt, params = prompt_tokens(new), new.sampling_params
    embeds = prompt_embeds(new)
    # A resumed request can be sent in full again, with what it has generated. Its id is then
    # known, and its random stream must go on where it stopped.
    tokens = list(new.prefill_token_ids or prompt)
    stream = 0
    if params is not None:
        state = sampled.add(new.req_id, params, known_tokens(new), tokens[len(prompt) :])
        stream = state.random_stream
    batch.remove(new.req_id)
    batch.add(
        Request(
            request_id=new.req_id,
            token_ids=tokens,
            num_prompt_tokens=len(prompt),
            sampling=SamplingParams() if params is None else core_sampling(params),
            num_computed_tokens=new.num_computed_tokens,
            prefill_until=prefill_until(params, len(prompt), embeds),
            prompt_embeds=embeds,
            random_stream=stream,
        )
    )
    batch[new.req_id].replace_blocks(new.block_ids)


def _update(batch: BatchState, sampled: SampledRequests, cached: CachedRequestData) -> None:
    for i, request_id in enumerate(cached.req_ids):
        request = batch[request_id]
        new_blocks = cached.new_block_ids[i]
        if request_id in cached.resumed_req_ids:
            # Preempted: its blocks were given away, and these are all it has now.
            nothing: Sequence[Sequence[int]] = [()] * (1 + len(request.further_block_ids))
            request.replace_blocks(new_blocks or nothing)
        elif new_blocks is not None:
            for group, blocks in enumerate(new_blocks):
                request.blocks_of(group).extend(blocks)
        request.num_computed_tokens = cached.num_computed_tokens[i]
        tokens = cached.all_token_ids.get(request_id)
        changed = _restore_tokens(request, tokens, cached.num_output_tokens[i])
        if changed and request_id in sampled:
            sampled.restore(request_id, request.token_ids[request.num_prompt_tokens :])


def _restore_tokens(request: Request, tokens: list[int] | None, num_output_tokens: int) -> bool:
    """Agree with the scheduler on the tokens of a request.

    Args:
        request: Changed.
        tokens: All tokens it knows, sent for requests that sat out the last step; else None.
        num_output_tokens: Output tokens the scheduler counts, with those of steps it has not
            heard of yet. Fewer than ours means that it took some back.

    Returns:
        Whether they may be others than before; not so in nearly every step.
    """
    if tokens is None and request.num_generated <= num_output_tokens:
        return False
    if tokens is not None:
        # Not the tail: a step that is under way for the scheduler may have been sampled here.
        request.token_ids[: len(tokens)] = tokens
    del request.token_ids[request.num_prompt_tokens + num_output_tokens :]
    return True
