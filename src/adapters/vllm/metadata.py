# SPDX-License-Identifier: Apache-2.0
"""Build vLLM's SamplingMetadata from our requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.v1.sample.metadata import SamplingMetadata

from trnport.adapters.vllm.sampled import SampledRequest

if TYPE_CHECKING:
    from vllm.v1.sample.logits_processor import LogitsProcessors

Requests = Sequence[SampledRequest]


def sampling_metadata(
    requests: Requests, vocab_size: int, processors: LogitsProcessors
) -> SamplingMetadata:
    """Describe how to sample n rows.

    Args:
        requests: n requests, in the order of the rows.
        vocab_size: V, columns of the logits.
        processors: Logits processors, told about these rows already.
    """
    all_greedy = all(r.is_greedy for r in requests)
    penalised = any(_has_penalties(r.params) for r in requests)
    return SamplingMetadata(
        temperature=None if all_greedy else _floats(requests, lambda p: p.temperature),
        all_greedy=all_greedy,
        all_random=not any(r.is_greedy for r in requests),
        top_p=_top_p(requests),
        top_k=_top_k(requests, vocab_size),
        generators={i: r.generator for i, r in enumerate(requests) if r.generator is not None},
        max_num_logprobs=_max_num_logprobs(requests, vocab_size),
        no_penalties=not penalised,
        prompt_token_ids=_prompts(requests, vocab_size) if penalised else None,
        frequency_penalties=_floats(requests, lambda p: p.frequency_penalty),
        presence_penalties=_floats(requests, lambda p: p.presence_penalty),
        repetition_penalties=_floats(requests, lambda p: p.repetition_penalty),
        output_token_ids=[r.outputs for r in requests],
        allowed_token_ids_mask=_disallowed(requests, vocab_size),
        bad_words_token_ids={
            i: r.params.bad_words_token_ids
            for i, r in enumerate(requests)
            if r.params.bad_words_token_ids
        },
        logitsprocs=processors,
    )


def is_plain_greedy(metadata: SamplingMetadata, requests: Requests) -> bool:
    """Whether the largest logit of each row is all that is asked for.

    Args:
        metadata: What :func:`sampling_metadata` made of these requests.
        requests: They may be told by a grammar what to leave out, since that is done before.
    """
    return (
        metadata.all_greedy
        and metadata.no_penalties
        and metadata.max_num_logprobs is None
        and metadata.allowed_token_ids_mask is None
        and not metadata.bad_words_token_ids
        and not any(r.params.min_tokens or r.params.logit_bias for r in requests)
    )


def _floats(requests: Requests, read: Callable[[Any], float]) -> Tensor:
    return torch.tensor([read(r.params) for r in requests], dtype=torch.float32)


def _has_penalties(params: Any) -> bool:
    neutral = (0.0, 0.0, 1.0)
    return neutral != (
        params.frequency_penalty,
        params.presence_penalty,
        params.repetition_penalty,
    )


def _top_p(requests: Requests) -> Tensor | None:
    if all(r.is_greedy or r.params.top_p >= 1 for r in requests):
        return None
    return _floats(requests, lambda p: p.top_p)


def _top_k(requests: Requests, vocab_size: int) -> Tensor | None:
    # 0, -1 and anything from the vocabulary size up mean "all", which vLLM spells V.
    counts = [r.params.top_k if 0 < r.params.top_k < vocab_size else vocab_size for r in requests]
    if all(r.is_greedy or k == vocab_size for r, k in zip(requests, counts, strict=True)):
        return None
    return torch.tensor(counts, dtype=torch.int32)


def _max_num_logprobs(requests: Requests, vocab_size: int) -> int | None:
    """Most alternatives any row wants; 0 for the sampled token alone, None for no logprobs."""
    counts = [r.params.logprobs for r in requests if r.params.logprobs is not None]
    return max((vocab_size if n == -1 else n for n in counts), default=None)


def _prompts(requests: Requests, vocab_size: int) -> Tensor:
    """``[n, longest prompt]`` int64, padded with V, which is no token's id."""
    rows = [torch.tensor(r.prompt, dtype=torch.int64) for r in requests]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=vocab_size)


def _disallowed(requests: Requests, vocab_size: int) -> Tensor | None:
    """``[n, V]`` bool, True where ``allowed_token_ids`` leaves a token out."""
    if not any(r.params.allowed_token_ids for r in requests):
        return None
    mask = torch.zeros(len(requests), vocab_size, dtype=torch.bool)
    for i, request in enumerate(requests):
        if request.params.allowed_token_ids:
            mask[i] = True
            mask[i, request.params.allowed_token_ids] = False
    return mask
