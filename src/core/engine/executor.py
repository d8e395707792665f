# SPDX-License-Identifier: Apache-2.0
"""Run steps: choose programs, call them, collect the logits to sample from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import attrs
import torch
from torch import Tensor

from trnport.core.engine.batch import BatchState, Request, Work, split_by_phase
from trnport.core.engine.inputs import InputBuilder
from trnport.core.engine.observer import SilentObserver, StepObserver, describe
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
    """

    request_ids: list[str]
    logits: Tensor


class StepExecutor:
    """Executes scheduled work on a model whose weights and caches are in place."""

    def __init__(
        self,
        model: CausalLM,
        compiler: Compiler,
        inputs: InputBuilder,
        observer: StepObserver | None = None,
    ) -> None:
        self._model = model
        self._compiler = compiler
        self._inputs = inputs
        self._observer = observer or SilentObserver()
        self._warming_up = False
        self._programs: dict[str, Program] = {}

    @property
    def program_names(self) -> list[str]:
        """Names of the programs that exist, in order of compilation."""
        return list(self._programs)

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
        rows = dict(self._prefill_rows(prefills))
        rows.update(self._decode_rows(decodes))
        for work in (*prefills, *decodes):
            work.request.num_computed_tokens += work.num_tokens
        ids = [request.request_id for request in batch if request.request_id in rows]
        if not ids:
            return StepResult([], torch.empty(0, self._model.vocab_size))
        return StepResult(ids, torch.stack([rows[request_id] for request_id in ids]))

    def warm_up(self, progress: Progress | None = None) -> None:
        """Compile every program by executing stand-in requests, then seal the compiler.

        The stand-ins own no blocks, so nothing is written to the caches.
        """
        started = time.monotonic()
        stand_ins = list(self._stand_ins())
        self._warming_up = True
        for done, (name, works) in enumerate(stand_ins):
            if progress:
                progress(done, len(stand_ins), name, time.monotonic() - started)
            batch = BatchState()
            for work in works:
                batch.add(work.request)
            self.execute(batch, {work.request.request_id: work.num_tokens for work in works})
        if progress:
            progress(len(stand_ins), len(stand_ins), "ready", time.monotonic() - started)
        self._warming_up = False
        self._compiler.seal()

    def _prefill_rows(self, prefills: list[Work]) -> Iterator[tuple[str, Tensor]]:
        for work in prefills:
            logits = self._run(self._inputs.prefill(work), [work])
            if work.reaches_end:
                yield work.request.request_id, logits[0]

    def _decode_rows(self, decodes: list[Work]) -> Iterator[tuple[str, Tensor]]:
        if not decodes:
            return
        logits = self._run(self._inputs.decode([work.request for work in decodes]), decodes)
        for row, work in enumerate(decodes):
            if work.reaches_end:
                yield work.request.request_id, logits[row]

    def _run(self, step: StepInput, works: list[Work]) -> Tensor:
        started = time.perf_counter()
        is_new = step.name not in self._programs
        with torch.inference_mode():
            kwargs = step.model_kwargs()
            if is_new:
                self._programs[step.name] = self._compiler.compile(
                    step.name, self._model, kwargs=kwargs
                )
            output: ModelOutput = self._programs[step.name](**kwargs)
        self._observe(step, works, time.perf_counter() - started, is_new=is_new)
        if output.logits is None:
            raise TypeError(f"{type(self._model).__name__} returned no logits")
        return output.logits

    def _observe(self, step: StepInput, works: list[Work], seconds: float, *, is_new: bool) -> None:
        if is_new:
            self._observer.compiled(step.name, seconds)
        if not self._warming_up:
            rows = step.input_ids.shape[0]
            execution = describe(step.name, works, rows, self._inputs.buckets)
            self._observer.executed(execution, seconds)

    def _stand_ins(self) -> Iterator[tuple[str, list[Work]]]:
        buckets = self._inputs.buckets
        for prefill in buckets.all_prefill_signatures():
            yield prefill.name, [_stand_in("warm-up", prefill.prior_context, prefill.tokens)]
        for decode in buckets.all_decode_signatures():
            cached = max(decode.context - 1, 1)  # a decode has at least one token to read
            yield decode.name, [_stand_in(f"warm-up-{i}", cached, 1) for i in range(decode.seqs)]


def _stand_in(name: str, cached: int, count: int) -> Work:
    tokens = [0] * (cached + count)
    return Work(Request(name, tokens, len(tokens), num_computed_tokens=cached), count)
