# SPDX-License-Identifier: Apache-2.0
"""Run steps: choose programs, call them, collect the logits to sample from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Self

import attrs
import torch
from torch import Tensor

from trnport.core.engine.batch import BatchState, Request, Work, split_by_phase
from trnport.core.engine.inputs import InputBuilder
from trnport.core.engine.sampling_inputs import Masks, SamplingInputBuilder
from trnport.core.metadata import ModelOutput, StepInput
from trnport.core.model import CausalLM
from trnport.core.ports.compiler import Compiler, Program

Progress = Callable[[int, int, str, float], None]
"""Called as (programs done, programs in all, name of the last one, seconds elapsed)."""


@attrs.frozen(eq=False)
class StepResult:
    """Logits or tokens of the requests whose next token can be sampled.

    Attributes:
        request_ids: n ids, in the order of the batch.
        logits: ``[n, vocab_size]``; None when programs return tokens only.
        token_ids: ``[n]`` int64 when programs sample, else None.
    """

    request_ids: list[str]
    logits: Tensor | None
    token_ids: Tensor | None = None

    @classmethod
    def collect(cls, request_ids: list[str], rows: Mapping[str, ModelOutput]) -> Self:
        """Stack the rows of some requests, at least one."""
        outputs = [rows[request_id] for request_id in request_ids]
        return cls(
            request_ids=request_ids,
            logits=_stack([output.logits for output in outputs]),
            token_ids=_stack([output.token_ids for output in outputs]),
        )

    def require_logits(self) -> Tensor:
        """The logits.

        Raises:
            ValueError: Programs return none.
        """
        if self.logits is None:
            raise ValueError("the programs return tokens only, and logits were asked for")
        return self.logits


class StepExecutor:
    """Executes scheduled work on a model whose weights and caches are in place."""

    def __init__(
        self,
        model: CausalLM,
        compiler: Compiler,
        inputs: InputBuilder,
        sampling: SamplingInputBuilder | None = None,
    ) -> None:
        self._model = model
        self._compiler = compiler
        self._inputs = inputs
        self._sampling = sampling
        self._programs: dict[str, Program] = {}

    @property
    def program_names(self) -> list[str]:
        """Names of the programs that exist, in order of compilation."""
        return list(self._programs)

    @property
    def samples(self) -> bool:
        """Whether programs return tokens."""
        return self._sampling is not None

    @property
    def all_greedy(self) -> bool:
        """Whether they take the largest logit whatever a request asks for."""
        return self._sampling is not None and self._sampling.all_greedy

    def execute(
        self,
        batch: BatchState,
        scheduled: Mapping[str, int],
        masks: Masks = MappingProxyType({}),
    ) -> StepResult:
        """Compute new tokens of some requests and advance their computed counts.

        A step with prompts and generations in it runs one prefill program for each chunk
        of prompt and one decode program for everything else, so neither waits for the
        other's next step.

        Args:
            batch: All requests.
            scheduled: Request id to number of new tokens.
            masks: Allowed tokens of constrained requests, for programs that sample.
        """
        prefills, decodes = split_by_phase(batch, scheduled)
        rows = dict(self._prefill_rows(prefills, masks))
        rows.update(self._decode_rows(decodes, masks))
        for work in (*prefills, *decodes):
            work.request.num_computed_tokens += work.num_tokens
        ids = [request.request_id for request in batch if request.request_id in rows]
        if not ids:
            return StepResult([], torch.empty(0, self._model.vocab_size))
        return StepResult.collect(ids, rows)

    def warm_up(self, progress: Progress | None = None) -> None:
        """Compile every program by executing stand-in requests, then seal the compiler.

        The stand-ins own no blocks, so nothing is written to the caches.
        """
        started = time.monotonic()
        stand_ins = list(self._stand_ins())
        for done, (name, works) in enumerate(stand_ins):
            if progress:
                progress(done, len(stand_ins), name, time.monotonic() - started)
            batch = BatchState()
            for work in works:
                batch.add(work.request)
            self.execute(batch, {work.request.request_id: work.num_tokens for work in works})
        if progress:
            progress(len(stand_ins), len(stand_ins), "ready", time.monotonic() - started)
        self._compiler.seal()

    def _prefill_rows(
        self, prefills: list[Work], masks: Masks
    ) -> Iterator[tuple[str, ModelOutput]]:
        for work in prefills:
            output = self._run(self._inputs.prefill(work), [work.request], masks)
            if work.reaches_end:
                yield work.request.request_id, _row(output, 0)

    def _decode_rows(self, decodes: list[Work], masks: Masks) -> Iterator[tuple[str, ModelOutput]]:
        if not decodes:
            return
        requests = [work.request for work in decodes]
        output = self._run(self._inputs.decode(requests), requests, masks)
        for row, work in enumerate(decodes):
            if work.reaches_end:
                yield work.request.request_id, _row(output, row)

    def _run(self, step: StepInput, requests: list[Request], masks: Masks) -> ModelOutput:
        if self._sampling:
            step = self._sampling.add(step, requests, masks)
        with torch.inference_mode():
            kwargs = step.model_kwargs()
            if step.name not in self._programs:
                self._programs[step.name] = self._compiler.compile(
                    step.name, self._model, kwargs=kwargs
                )
            output: ModelOutput = self._programs[step.name](**kwargs)
        promised = "token ids" if self._sampling else "logits"
        if (output.token_ids if self._sampling else output.logits) is None:
            raise TypeError(f"{type(self._model).__name__} returned no {promised}")
        return output

    def _stand_ins(self) -> Iterator[tuple[str, list[Work]]]:
        buckets = self._inputs.buckets
        for prefill in buckets.all_prefill_signatures():
            yield prefill.name, [_stand_in("warm-up", prefill.prior_context, prefill.tokens)]
        for decode in buckets.all_decode_signatures():
            cached = max(decode.context - 1, 1)  # a decode has at least one token to read
            yield decode.name, [_stand_in(f"warm-up-{i}", cached, 1) for i in range(decode.seqs)]


def _row(output: ModelOutput, row: int) -> ModelOutput:
    return output._replace(
        logits=None if output.logits is None else output.logits[row],
        token_ids=None if output.token_ids is None else output.token_ids[row],
    )


def _stack(rows: list[Tensor | None]) -> Tensor | None:
    present = [row for row in rows if row is not None]
    return torch.stack(present) if present else None


def _stand_in(name: str, cached: int, count: int) -> Work:
    tokens = [0] * (cached + count)
    return Work(Request(name, tokens, len(tokens), num_computed_tokens=cached), count)
