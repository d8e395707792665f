# SPDX-License-Identifier: Apache-2.0
"""Run steps: choose programs, call them, collect what there is to sample from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from trnport.core.engine.batch import BatchState, Request, Work, split_by_phase
from trnport.core.engine.hidden import HeadProgram, HiddenRows, head_rows
from trnport.core.engine.inputs import InputBuilder
from trnport.core.engine.observer import StepObserver
from trnport.core.engine.packing import pack_prefills
from trnport.core.engine.programs import Programs
from trnport.core.engine.result import Piece, StepResult
from trnport.core.engine.sampling_inputs import Masks, SamplingInputBuilder
from trnport.core.metadata import ModelOutput, StepInput
from trnport.core.model import CausalLM
from trnport.core.ports.compiler import Compiler, Origins

Progress = Callable[[int, int, str, float], None]
"""Called as (programs done, programs in all, name of the last one, seconds elapsed)."""


class StepExecutor:
    """Executes scheduled work on a model whose weights and caches are in place."""

    def __init__(
        self,
        model: CausalLM,
        compiler: Compiler,
        inputs: InputBuilder,
        *,
        sampling: SamplingInputBuilder | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._sampling = sampling
        self._programs = Programs(model, compiler, inputs.buckets, observer)
        self._head = HeadProgram(model, self._programs, head_rows(inputs.buckets))

    @property
    def program_names(self) -> list[str]:
        """Names of the programs that exist, in order of compilation."""
        return self._programs.names

    @property
    def program_origins(self) -> Origins:
        """Where the programs came from: a cache, or the compiler."""
        return self._programs.origins

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

        A step with prompts and generations in it runs prefill programs for the chunks of
        prompts and one decode program for everything else, so neither waits for the other's
        next step.

        Args:
            batch: All requests.
            scheduled: Request id to number of new tokens.
            masks: Allowed tokens of constrained requests, for programs that sample.
        """
        prefills, decodes = split_by_phase(batch, scheduled)
        hidden: dict[str, HiddenRows] = {}
        pieces = [*self._prefill_pieces(prefills, masks, hidden)]
        pieces += self._decode_pieces(decodes, masks)
        for work in (*prefills, *decodes):
            work.request.num_computed_tokens += work.num_tokens
        if not pieces:
            return StepResult([], torch.empty(0, self._model.vocab_size), None, hidden)
        return StepResult.collect((request.request_id for request in batch), pieces, hidden)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[n, vocab_size]`` of n rows of a step's ``hidden_states``."""
        return self._head(hidden)

    def warm_up(self, progress: Progress | None = None, *, lazy: bool = False) -> None:
        """Compile every program by executing stand-in requests, then seal the compiler.

        The stand-ins own no blocks, so nothing is written to the caches.

        Args:
            progress: Told about every program.
            lazy: Only fix which programs there are; each is compiled at its first use.
        """
        if lazy:
            self._programs.plan(self._planned_names())
            return
        started = time.monotonic()
        stand_ins = list(self._stand_ins())
        scores = self._inputs.features.scores_prompts
        total = len(stand_ins) + scores
        hidden: dict[str, HiddenRows] = {}

        def report(done: int, name: str) -> None:
            if progress:
                progress(done, total, name, time.monotonic() - started)

        with self._programs.warm_up():
            for done, (name, works) in enumerate(stand_ins):
                report(done, name)
                hidden = self._run_stand_in(works).hidden_states or hidden
            if scores:
                report(len(stand_ins), self._head.name)
                (some,) = hidden.values()
                self.compute_logits(some.rows[:1])
            report(total, "ready")

    def _prefill_pieces(
        self, prefills: list[Work], masks: Masks, hidden: dict[str, HiddenRows]
    ) -> Iterator[Piece]:
        for works in pack_prefills(prefills, self._inputs.buckets):
            output = self._run(self._inputs.prefill(works), works, masks)
            if output.hidden_states is not None:
                hidden.update(_hidden_rows(works, output.hidden_states))
            rows = [row for row, work in enumerate(works) if work.reaches_end]
            if rows and self._inputs.features.generates:
                yield Piece.of([works[row].request.request_id for row in rows], rows, output)

    def _decode_pieces(self, decodes: list[Work], masks: Masks) -> Iterator[Piece]:
        if not decodes:
            return
        step = self._inputs.decode([work.request for work in decodes])
        output = self._run(step, decodes, masks)
        rows = [row for row, work in enumerate(decodes) if work.reaches_end]
        if rows:
            yield Piece.of([decodes[row].request.request_id for row in rows], rows, output)

    def _run(self, step: StepInput, works: list[Work], masks: Masks) -> ModelOutput:
        if self._sampling:
            step = self._sampling.add(step, [work.request for work in works], masks)
        output = self._programs.run(step, works)
        if not self._inputs.features.generates:
            return output
        promised = "token ids" if self._sampling else "logits"
        if (output.token_ids if self._sampling else output.logits) is None:
            raise TypeError(f"{type(self._model).__name__} returned no {promised}")
        return output

    def _run_stand_in(self, works: list[Work]) -> StepResult:
        batch = BatchState()
        for work in works:
            batch.add(work.request)
        return self.execute(batch, {work.request.request_id: work.num_tokens for work in works})

    def _planned_names(self) -> Iterator[str]:
        yield from (name for name, _ in self._stand_ins())
        if self._inputs.features.scores_prompts:
            yield self._head.name

    def _stand_ins(self) -> Iterator[tuple[str, list[Work]]]:
        buckets = self._inputs.buckets
        for prefill in buckets.all_prefill_signatures():
            yield prefill.name, [_stand_in("warm-up", prefill.prior_context, prefill.tokens, True)]
        if not self._inputs.features.generates:
            return
        for decode in buckets.all_decode_signatures():
            cached = max(decode.context - 1, 1)  # a decode has at least one token to read
            yield decode.name, [_stand_in(f"warm-up-{i}", cached, 1) for i in range(decode.seqs)]


def _hidden_rows(works: list[Work], hidden_states: Tensor) -> Iterator[tuple[str, HiddenRows]]:
    """Each request's own rows, where it needs them."""
    end = 0
    for work in works:
        start, end = end, end + work.num_tokens
        if work.needs_prefill:
            rows = HiddenRows(work.request.num_computed_tokens, hidden_states[start:end])
            yield work.request.request_id, rows


def _stand_in(name: str, cached: int, count: int, is_prefill: bool = False) -> Work:
    tokens = [0] * (cached + count)
    request = Request(name, tokens, len(tokens), num_computed_tokens=cached)
    request.prefill_until = len(tokens) if is_prefill else 0
    return Work(request, count)
