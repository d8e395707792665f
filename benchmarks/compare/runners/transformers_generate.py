# SPDX-License-Identifier: Apache-2.0
"""Transformers ``generate``, with its default cache and attention; it has no prefix cache."""

from __future__ import annotations

from typing import Any

from benchmarks.compare.runners.protocol import TokenClock, Trace, serve


class TransformersEngine:
    """One model; all rows of a call form one batch."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch
        import transformers

        torch.set_num_threads(options["threads"])
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            options["model"], dtype=getattr(torch, options["dtype"])
        ).eval()
        self._model.generation_config.eos_token_id = None
        self._processors = transformers.LogitsProcessorList
        self.about = {"transformers": transformers.__version__, "torch": torch.__version__}

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Trace:
        ids = self._torch.tensor(prompts)
        rows = len(prompts)
        clock = TokenClock(rows)

        def note(tokens: Any, logits: Any) -> Any:
            clock.note([tokens.shape[1] - ids.shape[1] + 1] * rows)  # the argmax is still to come
            return logits

        with self._torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                max_new_tokens=new_tokens,
                do_sample=False,
                logits_processor=self._processors([note]),
            )
        return clock.finish([out.shape[1] - ids.shape[1]] * rows, new_tokens)


if __name__ == "__main__":
    serve(TransformersEngine)
