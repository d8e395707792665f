# SPDX-License-Identifier: Apache-2.0
"""Sample with vLLM's own sampler, on the host.

vLLM's sampler and logits processors are what users compare with, so they are used as they
are: penalties, min-p, logit bias, bad words, minimum length, logprobs and custom processors
all mean what they mean elsewhere. Replaced are only the functions that need a compiled kernel,
and those at the end, which choose one of the remaining tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor import (
    BUILTIN_LOGITS_PROCESSORS,
    BatchUpdate,
    LogitsProcessors,
    MoveDirectionality,
    build_logitsprocs,
)
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p_pytorch
from vllm.v1.sample.sampler import Sampler

from trnport.adapters.vllm.draw import draw, largest
from trnport.adapters.vllm.metadata import is_plain_greedy, sampling_metadata
from trnport.adapters.vllm.rows import SWAP, RowChanges, row_changes
from trnport.adapters.vllm.sampled import SampledRequest, SampledRequests

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.sample.metadata import SamplingMetadata


class HostSampler:
    """Turns a step's logits into tokens."""

    def __init__(self, vllm_config: VllmConfig, sampled: SampledRequests) -> None:
        model_config = vllm_config.model_config
        self._sampled = sampled
        self._sampler = _PortableSampler(model_config.logprobs_mode, model_config.use_fp64_gumbel)
        self._processors: LogitsProcessors = build_logitsprocs(
            vllm_config,
            torch.device("cpu"),
            is_pin_memory=False,
            is_pooling_model=False,
            custom_logitsprocs=model_config.logits_processors or (),
        )
        # Everything about the rows of the last step; mostly the next one has the same.
        self._rows: list[SampledRequest] = []
        self._metadata: SamplingMetadata | None = None
        self._takes_largest = False
        built_in = tuple(BUILTIN_LOGITS_PROCESSORS)
        self.has_custom_processors = any(type(p) not in built_in for p in self._processors.all)
        """Whether users brought processors of their own, which may change any row."""

    def sample(self, request_ids: Sequence[str], logits: Tensor) -> SamplerOutput:
        """Choose one token for each row.

        Args:
            request_ids: n requests.
            logits: ``[n, V]``, any floating dtype; may be changed in place.

        Returns:
            ``sampled_token_ids`` is ``[n, 1]``; ``logprobs_tensors`` has n rows or is None.
        """
        rows = [self._sampled[request_id] for request_id in request_ids]
        update = None
        if rows != self._rows or self._metadata is None:
            update = self._change_rows(rows, logits.shape[-1])
        elif self._takes_largest:
            return SamplerOutput(largest(logits)[:, None], None)
        for processor in self._processors.all:
            processor.update_state(update)
        return self._sampler(logits=logits, sampling_metadata=self._metadata)

    def _change_rows(self, rows: list[SampledRequest], vocab_size: int) -> BatchUpdate | None:
        # By the objects and not by the ids: an id may come back as another request.
        changes = row_changes(self._rows, rows)
        self._rows = rows
        self._metadata = sampling_metadata(rows, vocab_size, self._processors)
        self._takes_largest = not self.has_custom_processors and is_plain_greedy(
            self._metadata, rows
        )
        return self._batch_update(changes) if changes else None

    def _batch_update(self, changes: RowChanges[SampledRequest]) -> BatchUpdate:
        added = [(row, r.params, r.prompt, r.outputs) for row, r in changes.added]
        kinds = {True: MoveDirectionality.SWAP, False: MoveDirectionality.UNIDIRECTIONAL}
        return BatchUpdate(
            batch_size=len(self._rows),
            removed=list(changes.removed),
            added=added,
            moved=[(source, to, kinds[kind == SWAP]) for source, to, kind in changes.moved],
        )


def apply_grammar(
    schedule: SchedulerOutput,
    grammar: GrammarOutput | None,
    request_ids: Sequence[str],
    logits: Tensor,
) -> None:
    """Forbid what a request's grammar forbids; rows without a grammar are left alone.

    Args:
        schedule: The step's schedule.
        grammar: Bit masks of the requests with structured output, in the scheduler's order.
        request_ids: n requests, in the order of the rows.
        logits: ``[n, V]``; changed in place.
    """
    if grammar is None or not request_ids:
        return
    from vllm.v1.structured_output.utils import apply_grammar_bitmask

    # vLLM reads nothing but the order of the rows from its own batch object.
    batch: Any = SimpleNamespace(req_ids=list(request_ids))
    apply_grammar_bitmask(schedule, grammar, batch, logits)


class _PortableSampler(Sampler):
    """vLLM's sampler without the kernels that its CPU build would bring."""

    def __init__(self, logprobs_mode: Any, use_fp64_gumbel: bool) -> None:
        super().__init__(logprobs_mode, use_fp64_gumbel)
        self.topk_topp_sampler = _PortableTopKTopP(logprobs_mode, use_fp64_gumbel)

    @staticmethod
    def greedy_sample(logits: Tensor) -> Tensor:
        """Index of the largest logit of each row, the lowest among equals."""
        return largest(logits)


class _PortableTopKTopP(TopKTopPSampler):
    """Top-k, top-p and the draw in plain torch."""

    def __init__(self, logprobs_mode: Any, use_fp64_gumbel: bool) -> None:
        super().__init__(logprobs_mode, use_fp64_gumbel)
        # The base class stores the method it picked for the platform on the instance.
        self.forward = self.forward_native

    def forward_native(
        self,
        logits: Tensor,
        generators: dict[int, torch.Generator],
        k: Tensor | None,
        p: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """As in the base class, but never with Triton."""
        logits = apply_top_k_top_p_pytorch(logits, k, p, allow_cpu_sync=True)
        processed = None
        if self.logprobs_mode == "processed_logits":
            processed = logits
        elif self.logprobs_mode == "processed_logprobs":
            processed = logits.log_softmax(dim=-1, dtype=torch.float32)
        return draw(logits, generators), processed
