# SPDX-License-Identifier: Apache-2.0
"""What sampling keeps of each request between steps."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from trnport.core.engine.streams import RandomStreams

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM."""


@attrs.define(eq=False)
class SampledRequest:
    """One request, as sampling sees it.

    Attributes:
        params: vLLM's ``SamplingParams``.
        prompt: Prompt token ids.
        outputs: Generated token ids. Always the same list object, since vLLM's logits
            processors hold on to it and read new tokens from it.
        generator: The request's own random stream on the host; None when it has no seed or is
            greedy.
        random_stream: Its stream in programs.
    """

    params: Any
    prompt: list[int]
    outputs: list[int]
    generator: torch.Generator | None
    random_stream: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit is taken."""
        return bool(self.params.temperature < GREEDY_BELOW)


class SampledRequests:
    """Sampling state by request id.

    Args:
        seed: Decides what programs draw for requests without a seed.
    """

    def __init__(self, seed: int = 0) -> None:
        self._requests: dict[str, SampledRequest] = {}
        self._streams = RandomStreams(seed)

    def add(
        self, request_id: str, params: Any, prompt: list[int], outputs: list[int]
    ) -> SampledRequest:
        """Start a request, or go on with a known one whose tokens were sent again."""
        known = self._requests.get(request_id)
        generator = known.generator if known else _new_generator(params)
        stream = known.random_stream if known else self._streams.stream(params.seed)
        request = SampledRequest(params, prompt, outputs, generator, stream)
        self._requests[request_id] = request
        return request

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored, since an abort may arrive twice."""
        self._requests.pop(request_id, None)

    def restore(self, request_id: str, outputs: list[int]) -> None:
        """Replace the generated tokens where they differ."""
        if self._requests[request_id].outputs != outputs:
            self._requests[request_id].outputs[:] = outputs

    def append(self, request_id: str, token: int) -> None:
        """Record a new token."""
        self._requests[request_id].outputs.append(token)

    def __getitem__(self, request_id: str) -> SampledRequest:
        return self._requests[request_id]

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def __len__(self) -> int:
        return len(self._requests)


def _new_generator(params: Any) -> torch.Generator | None:
    # Only seeded requests need their own stream. The others share torch's, like in vLLM: what
    # they draw depends on their neighbours, and nobody can have relied on it.
    if params.seed is None or params.temperature < GREEDY_BELOW:
        return None
    return torch.Generator().manual_seed(params.seed)
