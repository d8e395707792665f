# SPDX-License-Identifier: Apache-2.0
"""``vllm.LLM``: with our plugin in our environment, with the CPU backend in the peer's."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.compare.runners.protocol import TokenClock, Trace, serve


class VllmEngine:
    """One engine for all workloads."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch
        import vllm

        self._engine = vllm.LLM(options["model"], **options["arguments"]).llm_engine
        self._params = vllm.SamplingParams
        self._serial = itertools.count()
        self.about = {"vllm": vllm.__version__, "torch": torch.__version__}

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Trace:
        params = self._params(
            temperature=0, ignore_eos=True, max_tokens=new_tokens, detokenize=False
        )
        run = next(self._serial)
        clock = TokenClock(len(prompts))
        counts: dict[str, int] = {}
        for row, prompt in enumerate(prompts):
            self._engine.add_request(f"{run}-{row}", {"prompt_token_ids": prompt}, params)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                counts[output.request_id] = len(output.outputs[0].token_ids)
            clock.note(list(counts.values()))
        return clock.finish(list(counts.values()), new_tokens)


if __name__ == "__main__":
    serve(VllmEngine)
