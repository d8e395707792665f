# SPDX-License-Identifier: Apache-2.0
"""Build the tensors with which a program samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import attrs
import torch
from torch import Tensor
from torch.nn.functional import pad

from trnport.core.config import NeuronConfig
from trnport.core.engine.batch import Request
from trnport.core.engine.packed import bits64, float32, int64
from trnport.core.engine.streams import random_keys
from trnport.core.metadata import SamplingInputs, StepInput

_PADDING = (1.0, 1.0, 0.0)

Masks = Mapping[str, Tensor]
"""Request id to ``[V]`` bool, False for forbidden tokens."""


@attrs.frozen
class SamplingInputBuilder:
    """Adds sampling to step inputs; the same tensors for every step of an engine.

    Attributes:
        vocab_size: V.
        all_greedy: Programs take no parameters.
        masked: Programs take a mask, also when nothing is forbidden.
        device: Where the tensors go.
    """

    vocab_size: int
    all_greedy: bool = False
    masked: bool = False
    device: torch.device = torch.device("cpu")
    # Masks that forbid nothing, by rows: megabytes, and programs only read them.
    _free: dict[int, Tensor] = attrs.field(factory=dict, init=False, repr=False, eq=False)

    @classmethod
    def of(
        cls, config: NeuronConfig, vocab_size: int, device: torch.device | str
    ) -> SamplingInputBuilder | None:
        """The builder that validated settings ask for; None when the host samples."""
        if config.on_device_sampling_config is None:
            return None
        return cls(
            vocab_size=vocab_size,
            all_greedy=config.on_device_sampling_config.all_greedy,
            masked=config.enable_structured_outputs,
            device=torch.device(device),
        )

    def add(self, step: StepInput, requests: Sequence[Request], masks: Masks) -> StepInput:
        """Complete a step's input.

        Args:
            step: Input of B rows.
            requests: At most B, in the order of the rows.
            masks: Those of requests that are constrained.
        """
        rows = step.sampling_positions.shape[0]
        return attrs.evolve(
            step,
            sampling=None if self.all_greedy else self._parameters(requests, rows),
            logit_mask=self._mask(requests, masks, rows) if self.masked else None,
        )

    def _parameters(self, requests: Sequence[Request], rows: int) -> SamplingInputs:
        padding = rows - len(requests)
        params = [self._triple(request) for request in requests] + [_PADDING] * padding
        keys = random_keys(
            bits64(r.random_stream for r in requests), int64(r.num_generated for r in requests)
        )
        return SamplingInputs(
            sampler_params=float32(chain.from_iterable(params)).view(rows, 3).to(self.device),
            random_keys=pad(keys, (0, padding)).to(self.device),
        )

    def _triple(self, request: Request) -> tuple[float, float, float]:
        sampling = request.sampling
        keep_all = not 0 < sampling.top_k < self.vocab_size
        top_k = self.vocab_size if keep_all else sampling.top_k
        return float(top_k), sampling.top_p, sampling.temperature

    def _mask(self, requests: Sequence[Request], masks: Masks, rows: int) -> Tensor:
        if not masks:
            return self._free_rows(rows)
        mask = torch.ones(rows, self.vocab_size, dtype=torch.bool)
        for row, request in enumerate(requests):
            if request.request_id in masks:
                mask[row] = masks[request.request_id]
        return mask.to(self.device)

    def _free_rows(self, rows: int) -> Tensor:
        if rows not in self._free:
            free = torch.ones(rows, self.vocab_size, dtype=torch.bool)
            self._free[rows] = free.to(self.device)
        return self._free[rows]
