# SPDX-License-Identifier: Apache-2.0
"""The requests an engine is working on."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import attrs

from trnport.core.engine.embeds import PromptEmbeds
from trnport.core.engine.sampling import SamplingParams
from trnport.core.errors import RequestError


def _blocks(ids: Iterable[int]) -> array[int]:
    return ids if isinstance(ids, array) else array("i", ids)


def _groups(groups: Iterable[Iterable[int]]) -> list[array[int]]:
    return [_blocks(ids) for ids in groups]


@attrs.define(eq=False)
class Request:
    """One sequence.

    Block ids are packed, so that a step copies them into its tables as they are.

    Attributes:
        request_id: Unique name.
        token_ids: Every known token: the prompt, then what was generated.
        num_prompt_tokens: How many of them are the prompt.
        sampling: How the next token is chosen.
        block_ids: int32 ids of the KV blocks owned, in order of position, in the first group
            of layers; there is no other unless vLLM frees blocks behind sliding windows.
        num_computed_tokens: Leading tokens whose keys and values are in the cache.
        further_block_ids: The same for each further group.
        prefill_until: Tokens before this position are computed by prefill programs even when
            one comes alone, since those alone return hidden states and take embeddings.
        prompt_embeds: Embeddings in place of the prompt's first token ids.
        random_stream: Decides what programs draw for the request.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams = attrs.field(factory=SamplingParams)
    block_ids: array[int] = attrs.field(converter=_blocks, default=())
    num_computed_tokens: int = 0
    further_block_ids: list[array[int]] = attrs.field(converter=_groups, default=())
    prefill_until: int = 0
    prompt_embeds: PromptEmbeds | None = None
    random_stream: int = 0

    @property
    def num_generated(self) -> int:
        """Known tokens behind the prompt."""
        return len(self.token_ids) - self.num_prompt_tokens

    def blocks_of(self, group: int) -> array[int]:
        """KV blocks owned in one group of layers; none in one the request knows nothing of."""
        if group == 0:
            return self.block_ids
        if group <= len(self.further_block_ids):
            return self.further_block_ids[group - 1]
        return array("i")

    def replace_blocks(self, groups: Iterable[Iterable[int]]) -> None:
        """Own copies of these blocks and no others; an item for each group of layers."""
        self.block_ids, *self.further_block_ids = (array("i", ids) for ids in groups)


class BatchState:
    """Requests by id, in order of arrival."""

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}

    def add(self, request: Request) -> None:
        """Add a request.

        Raises:
            RequestError: The id is taken, or there is no token to compute.
        """
        if request.request_id in self._requests:
            raise RequestError(f"request id {request.request_id!r} is already in the batch")
        if not request.token_ids:
            raise RequestError(f"request {request.request_id!r} has an empty prompt; send a token")
        self._requests[request.request_id] = request

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored, since an abort may arrive twice."""
        self._requests.pop(request_id, None)

    def __getitem__(self, request_id: str) -> Request:
        return self._requests[request_id]

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __len__(self) -> int:
        return len(self._requests)


class Work(NamedTuple):
    """New tokens to compute for one request in one step."""

    request: Request
    num_tokens: int

    @property
    def is_decode(self) -> bool:
        """One new token on top of cached ones, whatever the token's origin.

        The last token of a prompt whose rest is cached and a resumed request's last token
        qualify too: the decode program computes exactly that.
        """
        return (
            self.num_tokens == 1 and self.request.num_computed_tokens > 0 and not self.needs_prefill
        )

    @property
    def needs_prefill(self) -> bool:
        """Whether its first token has to be computed by a prefill program."""
        return self.request.num_computed_tokens < self.request.prefill_until

    @property
    def reaches_end(self) -> bool:
        """Whether the step computes the last known token, so that the next can be sampled."""
        done = self.request.num_computed_tokens + self.num_tokens
        return done >= len(self.request.token_ids)


def split_by_phase(
    batch: BatchState, scheduled: Mapping[str, int]
) -> tuple[list[Work], list[Work]]:
    """Split a step's work into prefills and decodes.

    Args:
        batch: All requests.
        scheduled: Request id to number of new tokens, each at least 1.

    Returns:
        Prefills and decodes, each in the order of ``scheduled``.
    """
    prefills: list[Work] = []
    decodes: list[Work] = []
    for request_id, count in scheduled.items():
        work = Work(batch[request_id], count)
        (decodes if work.is_decode else prefills).append(work)
    return prefills, decodes
