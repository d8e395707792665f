# SPDX-License-Identifier: Apache-2.0
"""A small complete engine without vLLM: for tests, demos and bringing up a model.

It admits requests in order of arrival while their blocks last, prefills each in chunks,
then decodes all of them together. For serving, use the vLLM adapter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import attrs
import torch

from trnport.core.engine.batch import BatchState, Request
from trnport.core.engine.blocks import BlockPool
from trnport.core.engine.executor import StepExecutor
from trnport.core.engine.result import StepResult
from trnport.core.engine.sampling import Sampler, SamplingParams
from trnport.core.engine.streams import RandomStreams
from trnport.core.errors import RequestError


@attrs.frozen
class Limits:
    """What a session can hold.

    Attributes:
        max_model_len: Most tokens of one request, prompt and output together.
        max_num_seqs: Most requests at a time.
        max_prefill_tokens: Most tokens of one prefill chunk.
        block_size: Positions per KV block.
        num_blocks: KV blocks, the null block included.
        vocab_size: Token ids are below this.
    """

    max_model_len: int
    max_num_seqs: int
    max_prefill_tokens: int
    block_size: int
    num_blocks: int
    vocab_size: int

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)


@attrs.frozen
class Generated:
    """One new token of one request; ``finished`` on its last."""

    request_id: str
    token_id: int
    finished: bool


@attrs.define(eq=False)
class _Job:
    request: Request
    max_tokens: int
    stop_ids: frozenset[int]

    @property
    def reserved_tokens(self) -> int:
        return self.request.num_prompt_tokens + self.max_tokens


class Session:
    """Serves requests on one executor."""

    def __init__(
        self,
        executor: StepExecutor,
        limits: Limits,
        defaults: SamplingParams = SamplingParams(temperature=0),  # noqa: B008  # frozen
        seed: int | None = None,
    ) -> None:
        """Start without requests.

        Args:
            executor: Runs the steps.
            limits: What the executor's caches and programs can hold.
            defaults: Sampling of requests that bring none.
            seed: Decides what programs draw for requests without a seed; None is a fresh one.
        """
        self._executor = executor
        self._limits = limits
        self._defaults = defaults
        self._streams = RandomStreams(torch.Generator().seed() if seed is None else seed)
        self._sampler = Sampler()
        self._batch = BatchState()
        self._pool = BlockPool(limits.num_blocks)
        self._waiting: deque[_Job] = deque()
        self._running: dict[str, _Job] = {}
        self._count = 0

    @property
    def num_free_blocks(self) -> int:
        """KV blocks that no request holds."""
        return self._pool.num_free

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._waiting or self._running)

    def add(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams | None = None,
        max_tokens: int = 16,
        stop_ids: Sequence[int] = (),
    ) -> str:
        """Queue a request.

        Args:
            prompt: Token ids, at least one.
            sampling: The session's defaults when None: greedy, unless set otherwise.
            max_tokens: Most tokens to generate.
            stop_ids: The request ends after generating one of these.

        Returns:
            The request's id.

        Raises:
            RequestError: The request can never be served; nothing else is affected.
        """
        self._validate(prompt, max_tokens)
        sampling = sampling or self._defaults
        if sampling.temperature > 0 and self._executor.all_greedy:
            raise RequestError(
                f"temperature={sampling.temperature:g}: this engine's programs are all greedy; "
                "use 0, or open the session without all_greedy"
            )
        self._count += 1
        request = Request(
            request_id=f"request-{self._count}",
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            sampling=sampling,
            random_stream=self._streams.stream(sampling.seed),
        )
        self._waiting.append(_Job(request, max_tokens, frozenset(stop_ids)))
        return request.request_id

    def abort(self, request_id: str) -> None:
        """Drop a request in whatever state; unknown ids are ignored."""
        self._waiting = deque(j for j in self._waiting if j.request.request_id != request_id)
        if request_id in self._running:
            self._finish(request_id)

    def step(self) -> list[Generated]:
        """Run one step over everything that can run."""
        self._admit()
        scheduled = {
            job.request.request_id: self._next_tokens(job) for job in self._running.values()
        }
        if not scheduled:
            return []
        result = self._executor.execute(self._batch, scheduled)
        requests = [self._batch[request_id] for request_id in result.request_ids]
        tokens = self._tokens(result, requests)
        return [self._accept(r, t) for r, t in zip(requests, tokens, strict=True)]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | None = None,
        max_tokens: int = 16,
        stop_ids: Sequence[int] = (),
    ) -> list[list[int]]:
        """Generate for several prompts and return each one's new tokens."""
        ids = [self.add(prompt, sampling, max_tokens, stop_ids) for prompt in prompts]
        outputs: dict[str, list[int]] = {request_id: [] for request_id in ids}
        while self.has_work:
            for new in self.step():
                if new.request_id in outputs:
                    outputs[new.request_id].append(new.token_id)
        return [outputs[request_id] for request_id in ids]

    def stream(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams | None = None,
        max_tokens: int = 16,
        stop_ids: Sequence[int] = (),
    ) -> Iterator[int]:
        """Yield one prompt's new tokens as they come."""
        request_id = self.add(prompt, sampling, max_tokens, stop_ids)
        while self.has_work:
            for new in self.step():
                if new.request_id == request_id:
                    yield new.token_id
                    if new.finished:
                        return

    def _validate(self, prompt: Sequence[int], max_tokens: int) -> None:
        limits = self._limits
        if not prompt:
            raise RequestError("the prompt is empty; send at least one token")
        bad = next((t for t in prompt if not 0 <= t < limits.vocab_size), None)
        if bad is not None:
            raise RequestError(f"token id {bad} is outside the vocabulary of {limits.vocab_size}")
        if max_tokens < 1:
            raise RequestError(f"max_tokens={max_tokens} must be at least 1")
        total = len(prompt) + max_tokens
        if total > limits.max_model_len:
            raise RequestError(
                f"{len(prompt)} prompt tokens and max_tokens={max_tokens} make {total}, over "
                f"max_model_len={limits.max_model_len}; shorten one of them"
            )
        if limits.blocks_for(total) > limits.num_blocks - 1:
            raise RequestError(
                f"{total} tokens need {limits.blocks_for(total)} KV blocks and there are "
                f"{limits.num_blocks - 1}; raise num_blocks or shorten the request"
            )

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._limits.max_num_seqs:
            job = self._waiting[0]
            # Everything the request may need is reserved, so a running one never starves.
            needed = self._limits.blocks_for(job.reserved_tokens)
            if needed > self._pool.num_free:
                return
            self._waiting.popleft()
            job.request.replace_blocks([self._pool.take(needed)])
            self._batch.add(job.request)
            self._running[job.request.request_id] = job

    def _tokens(self, result: StepResult, requests: list[Request]) -> list[int]:
        if result.token_ids is not None:
            return result.token_ids.tolist()
        return self._sampler.sample(result.require_logits(), requests)

    def _next_tokens(self, job: _Job) -> int:
        remaining = len(job.request.token_ids) - job.request.num_computed_tokens
        return min(remaining, self._limits.max_prefill_tokens)

    def _accept(self, request: Request, token: int) -> Generated:
        job = self._running[request.request_id]
        request.token_ids.append(token)
        generated = len(request.token_ids) - request.num_prompt_tokens
        finished = token in job.stop_ids or generated >= job.max_tokens
        if finished:
            self._finish(request.request_id)
        return Generated(request.request_id, token, finished)

    def _finish(self, request_id: str) -> None:
        job = self._running.pop(request_id)
        self._pool.give_back(job.request.block_ids)
        self._batch.remove(request_id)
        self._sampler.forget(request_id)
