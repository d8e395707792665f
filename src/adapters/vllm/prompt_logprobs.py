# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of prompt tokens, chunk by chunk.

The row of a token's hidden state predicts the token behind it: the first token of a prompt has
no log-probability, and the last one's row belongs to sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.sampler import Sampler

from trnport.core.engine.batch import BatchState, Request
from trnport.core.engine.hidden import HiddenRows

LOGITS_MODES = ("raw_logits", "processed_logits")
"""Values of ``logprobs_mode`` that ask for logits in place of log-probabilities."""


class PromptLogprobs:
    """Collects them until a request's prompt is complete.

    Args:
        compute_logits: ``[n, hidden_size]`` to ``[n, V]``.
        logprobs_mode: vLLM's setting of that name.
    """

    def __init__(self, compute_logits: Callable[[Tensor], Tensor], logprobs_mode: str) -> None:
        self._compute_logits = compute_logits
        self._wants_logits = logprobs_mode in LOGITS_MODES
        # By request, until they are reported; a preempted prompt starts over and overwrites.
        self._collected: dict[str, LogprobsTensors] = {}
        self._reported: set[str] = set()

    def remove(self, request_id: str) -> None:
        """Forget a finished request; unknown ids are ignored."""
        self._collected.pop(request_id, None)
        self._reported.discard(request_id)

    def step(
        self,
        batch: BatchState,
        hidden: Mapping[str, HiddenRows],
        wanted: Mapping[str, int],
    ) -> dict[str, LogprobsTensors]:
        """Take in one step, after which ``num_computed_tokens`` counts.

        Args:
            batch: All requests.
            hidden: What the step's prefill programs returned.
            wanted: Scheduled requests that ask for prompt log-probabilities, and how many of
                the most likely tokens; -1 for all.

        Returns:
            Complete ones, each once: n - 1 rows of 1 + wanted columns for n prompt tokens, the
            prompt's own token first.
        """
        for request_id, count in wanted.items():
            if request_id in hidden and request_id not in self._reported:
                self._collect(batch[request_id], hidden[request_id], count)
        done = {}
        for request_id, count in wanted.items():
            request = batch[request_id]
            if request_id in self._reported:
                continue
            if request.num_computed_tokens < request.num_prompt_tokens:
                continue
            done[request_id] = self._collected.pop(request_id, None) or LogprobsTensors.empty_cpu(
                0, max(count, 0) + 1
            )
            self._reported.add(request_id)
        return done

    def _collect(self, request: Request, hidden: HiddenRows, count: int) -> None:
        # The last row of a prompt is left out: the token behind it is sampled.
        rows = min(hidden.rows.shape[0], request.num_prompt_tokens - 1 - hidden.start)
        if rows < 1:
            return
        logits = self._compute_logits(hidden.rows[:rows]).float().cpu()
        count = logits.shape[-1] if count == -1 else count
        first = hidden.start + 1
        targets = torch.tensor(request.token_ids[first : first + rows], dtype=torch.int64)
        scores = logits if self._wants_logits else logits.log_softmax(-1)
        if request.request_id not in self._collected:
            self._collected[request.request_id] = LogprobsTensors.empty_cpu(
                request.num_prompt_tokens - 1, count + 1
            )
        into = self._collected[request.request_id]
        place = slice(hidden.start, hidden.start + rows)
        found = Sampler.gather_logprobs(scores, count, targets)
        into.logprob_token_ids[place] = found.logprob_token_ids
        into.logprobs[place] = found.logprobs
        into.selected_token_ranks[place] = found.selected_token_ranks
