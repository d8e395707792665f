# SPDX-License-Identifier: Apache-2.0
"""Host sampling: greedy, temperature, top-k, top-p, one random stream per request.

A row's result depends on its own logits, parameters and generator only, never on its
place in the batch or its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

from trnport.core.errors import RequestError


def _check(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    del instance  # attrs passes it; the value says everything
    lowest, highest = attribute.metadata["range"]
    # Written so that NaN fails as well.
    if not lowest <= value <= highest:
        raise RequestError(
            f"sampling parameter {attribute.name}={value} must be from {lowest:g} to {highest:g}"
        )


_SMALLEST = 1e-30
"""Stands for "above zero" in an inclusive range."""


@attrs.frozen
class SamplingParams:
    """How one request chooses its tokens.

    Attributes:
        temperature: 0 takes the largest logit, the lowest index among equals.
        top_k: Keep this many largest logits; 0, -1 and anything from the vocabulary size up
            keep all.
        top_p: Keep the smallest set of most probable tokens that reaches this mass.
        seed: Fixes the request's random stream; None draws a fresh one.
    """

    temperature: float = attrs.field(
        default=1.0, validator=_check, metadata={"range": (0, float("inf"))}
    )
    top_k: int = attrs.field(default=0, validator=_check, metadata={"range": (-1, float("inf"))})
    top_p: float = attrs.field(default=1.0, validator=_check, metadata={"range": (_SMALLEST, 1)})
    seed: int | None = None


class SampledRequest(Protocol):
    """The part of a request that sampling reads."""

    request_id: str
    sampling: SamplingParams


class Sampler:
    """Samples one token per row and keeps each request's random stream."""

    def __init__(self) -> None:
        self._generators: dict[str, torch.Generator] = {}

    def sample(self, logits: Tensor, requests: Sequence[SampledRequest]) -> list[int]:
        """Choose one token for each row.

        Args:
            logits: ``[n, V]``, any floating dtype; row i belongs to ``requests[i]``.
            requests: n requests.

        Returns:
            n token ids.
        """
        rows = logits.float()
        tokens = torch.argmax(rows, dim=-1).tolist()
        for i, request in enumerate(requests):
            if request.sampling.temperature > 0:
                tokens[i] = self._draw(rows[i], request)
        return tokens

    def forget(self, request_id: str) -> None:
        """Drop a finished request's random stream; unknown ids are ignored."""
        self._generators.pop(request_id, None)

    def _draw(self, row: Tensor, request: SampledRequest) -> int:
        params = request.sampling
        scores = apply_top_k_top_p(row / params.temperature, params.top_k, params.top_p)
        # The largest of p / Exp(1) is distributed as a draw from p, without building a CDF.
        noise = torch.empty_like(scores).exponential_(generator=self._generator(request))
        return int((scores.softmax(-1) / noise).argmax())

    def _generator(self, request: SampledRequest) -> torch.Generator:
        generator = self._generators.get(request.request_id)
        if generator is None:
            generator = torch.Generator()
            if request.sampling.seed is None:
                generator.seed()
            else:
                generator.manual_seed(request.sampling.seed)
            self._generators[request.request_id] = generator
        return generator


def apply_top_k_top_p(scores: Tensor, top_k: int, top_p: float) -> Tensor:
    """Set what top-k, then top-p (Holtzman et al., 2020), exclude to minus infinity.

    Args:
        scores: ``[V]`` fp32, already divided by the temperature.
        top_k: As in :class:`SamplingParams`; exactly this many survive, lowest index first
            among equals.
        top_p: As in :class:`SamplingParams`; at least one token survives.

    Returns:
        ``[V]`` fp32.
    """
    keep_all = top_k <= 0 or top_k >= scores.shape[-1]
    if keep_all and top_p >= 1:
        return scores
    ordered, order = torch.sort(scores, descending=True, stable=True)
    if not keep_all:
        ordered = ordered.clone()
        ordered[top_k:] = -torch.inf
    if top_p < 1:
        mass = ordered.softmax(-1).cumsum(-1)
        # A token stays while the mass *before* it is below top_p, so the first always stays.
        before = torch.cat([mass.new_zeros(1), mass[:-1]])
        ordered = ordered.masked_fill(before >= top_p, -torch.inf)
    return torch.full_like(scores, -torch.inf).scatter(-1, order, ordered)
