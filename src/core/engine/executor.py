# SPDX-License-Identifier: Apache-2.0
"""Run steps: choose programs, call them, collect the logits to sample from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import attrs
import torch
from torch import Tensor

from trnport.core.engine.batch import BatchState, Request, Work, split_by_phase
from trnport.core.engine.hidden import HeadProgram, HiddenRows, head_rows
from trnport.core.engine.inputs import InputBuilder
from trnport.core.metadata import ModelOutput, StepInput
from trnport.core.model import CausalLM
from trnport.core.ports.compiler import Compiler, Program

Progress = Callable[[int, int, str, float], None]
"""Called as (programs done, programs in all, name of the last one, seconds elapsed)."""


@attrs.frozen(eq=False)
class StepResult:
    """Logits of the requests whose next token can be sampled.

    Attributes:
        request_ids: n ids, in the order of the batch.
        logits: ``[n, vocab_size]``.
        hidden_states: What prefill programs returned for requests that need it, by id.
    """

    request_ids: list[str]
    logits: Tensor
    hidden_states: dict[str, HiddenRows] = attrs.field(factory=dict)


class StepExecutor:
    """Executes scheduled work on a model whose weights and caches are in place."""

    def __init__(self, model: CausalLM, compiler: Compiler, inputs: InputBuilder) -> None:
        self._model = model
        self._compiler = compiler
        self._inputs = inputs
        self._programs: dict[str, Program] = {}
        self._head = HeadProgram(model, compiler, head_rows(inputs.buckets))

    @property
    def program_names(self) -> list[str]:
        """Names of the programs that exist, in order of compilation."""
        return [*self._programs, *([self._head.name] if self._head.is_compiled else [])]

    def execute(self, batch: BatchState, scheduled: Mapping[str, int]) -> StepResult:
        """Compute new tokens of some requests and advance their computed counts.

        A step with prompts and generations in it runs one prefill program for each chunk
        of prompt and one decode program for everything else, so neither waits for the
        other's next step.

        Args:
            batch: All requests.
            scheduled: Request id to number of new tokens.
        """
        prefills, decodes = split_by_phase(batch, scheduled)
        hidden: dict[str, HiddenRows] = {}
        rows = dict(self._prefill_rows(prefills, hidden))
        rows.update(self._decode_rows(decodes))
        for work in (*prefills, *decodes):
            work.request.num_computed_tokens += work.num_tokens
        ids = [request.request_id for request in batch if request.request_id in rows]
        if not ids:
            return StepResult([], torch.empty(0, self._model.vocab_size), hidden)
        return StepResult(ids, torch.stack([rows[request_id] for request_id in ids]), hidden)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[n, vocab_size]`` of n rows of a step's ``hidden_states``."""
        return self._head(hidden)

    def warm_up(self, progress: Progress | None = None) -> None:
        """Compile every program by executing stand-in requests, then seal the compiler.

        The stand-ins own no blocks, so nothing is written to the caches.
        """
        started = time.monotonic()
        stand_ins = list(self._stand_ins())
        scores = self._inputs.features.scores_prompts
        total = len(stand_ins) + scores
        hidden: dict[str, HiddenRows] = {}
        for done, (name, works) in enumerate(stand_ins):
            if progress:
                progress(done, total, name, time.monotonic() - started)
            batch = BatchState()
            for work in works:
                batch.add(work.request)
            scheduled = {work.request.request_id: work.num_tokens for work in works}
            hidden = self.execute(batch, scheduled).hidden_states or hidden
        if scores:
            if progress:
                progress(len(stand_ins), total, self._head.name, time.monotonic() - started)
            (some,) = hidden.values()
            self.compute_logits(some.rows[:1])
        if progress:
            progress(total, total, "ready", time.monotonic() - started)
        self._compiler.seal()

    def _prefill_rows(
        self, prefills: list[Work], hidden: dict[str, HiddenRows]
    ) -> Iterator[tuple[str, Tensor]]:
        for work in prefills:
            output = self._run(self._inputs.prefill(work))
            if output.hidden_states is not None and work.needs_prefill:
                hidden[work.request.request_id] = HiddenRows(
                    work.request.num_computed_tokens, output.hidden_states[: work.num_tokens]
                )
            if work.reaches_end and self._inputs.features.generates:
                yield work.request.request_id, self._logits(output)[0]

    def _decode_rows(self, decodes: list[Work]) -> Iterator[tuple[str, Tensor]]:
        if not decodes:
            return
        output = self._run(self._inputs.decode([work.request for work in decodes]))
        logits = self._logits(output)
        for row, work in enumerate(decodes):
            if work.reaches_end:
                yield work.request.request_id, logits[row]

    def _run(self, step: StepInput) -> ModelOutput:
        with torch.inference_mode():
            kwargs = step.model_kwargs()
            if step.name not in self._programs:
                self._programs[step.name] = self._compiler.compile(
                    step.name, self._model, kwargs=kwargs
                )
            output: ModelOutput = self._programs[step.name](**kwargs)
        return output

    def _logits(self, output: ModelOutput) -> Tensor:
        if output.logits is None:
            raise TypeError(f"{type(self._model).__name__} returned no logits")
        return output.logits

    def _stand_ins(self) -> Iterator[tuple[str, list[Work]]]:
        buckets = self._inputs.buckets
        for prefill in buckets.all_prefill_signatures():
            yield prefill.name, [_stand_in("warm-up", prefill.prior_context, prefill.tokens, True)]
        if not self._inputs.features.generates:
            return
        for decode in buckets.all_decode_signatures():
            cached = max(decode.context - 1, 1)  # a decode has at least one token to read
            yield decode.name, [_stand_in(f"warm-up-{i}", cached, 1) for i in range(decode.seqs)]


def _stand_in(name: str, cached: int, count: int, is_prefill: bool = False) -> Work:
    tokens = [0] * (cached + count)
    request = Request(name, tokens, len(tokens), num_computed_tokens=cached)
    request.prefill_until = len(tokens) if is_prefill else 0
    return Work(request, count)
