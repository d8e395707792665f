# SPDX-License-Identifier: Apache-2.0
"""llama.cpp through the C interface of ``llama-cpp-python``, whose Python class has no batches.

A prefix that all prompts share is computed once and its cells are given to the other sequences, as
llama.cpp's own server does.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.runners.protocol import TokenClock, Trace, serve

LEAST_SHARED = 64


class LlamaCppEngine:
    """One context with as many sequences as the largest batch."""

    def __init__(self, options: dict[str, Any]) -> None:
        import llama_cpp

        self._lib = llama_cpp
        path = options["gguf"]
        if options["bfloat16"]:
            path = self._in_bfloat16(Path(path), options["threads"])
        loading = llama_cpp.llama_model_default_params()
        # Its AMX kernels for quantised weights crash on virtual machines (llama.cpp issue 20824);
        # there are none for bfloat16, and none of the other repacked formats is ours.
        loading.use_extra_bufts = False
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), loading)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = options["context"]
        settings.n_seq_max = options["sequences"]
        settings.n_batch = options["batch"]
        settings.n_threads = settings.n_threads_batch = options["threads"]
        settings.kv_unified = True  # otherwise each sequence owns 1 / sequences of the cells
        self._batch_size = options["batch"]
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError("llama.cpp made no context; see the log")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._sampler = llama_cpp.llama_sampler_init_greedy()
        self._batch = llama_cpp.llama_batch_init(options["batch"], 0, 1)
        self.about = {"llama-cpp-python": llama_cpp.__version__, "weights": Path(path).name}

    def _in_bfloat16(self, source: Path, threads: int) -> Path:
        """The same weights at the width that the other engines read."""
        target = source.with_name(f"{source.name}.bf16.gguf")
        if not target.exists():
            settings = self._lib.llama_model_quantize_default_params()
            settings.nthread = threads
            settings.ftype = self._lib.LLAMA_FTYPE_MOSTLY_BF16
            settings.allow_requantize = True
            part = target.with_suffix(f".{os.getpid()}")
            if self._lib.llama_model_quantize(str(source).encode(), str(part).encode(), settings):
                raise RuntimeError(f"llama.cpp cannot convert {source}; see the log")
            part.replace(target)
        return target

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Trace:
        rows = len(prompts)
        clock = TokenClock(rows)
        self._lib.llama_memory_clear(self._memory, True)
        shared = self._shared(prompts)
        if shared:
            self._run([(token, at, 0) for at, token in enumerate(prompts[0][:shared])], ())
            for row in range(1, rows):
                self._lib.llama_memory_seq_cp(self._memory, 0, row, 0, shared)
        rest = [
            (token, at, row)
            for row, prompt in enumerate(prompts)
            for at, token in enumerate(prompt)
            if at >= shared
        ]
        own = len(rest) // rows
        latest = self._run(rest, range(own - 1, len(rest), own))
        clock.note([1] * rows)
        at = len(prompts[0])
        for _ in range(new_tokens - 1):
            latest = self._run([(latest[row], at, row) for row in range(rows)], range(rows))
            at += 1
        return clock.finish([new_tokens] * rows, new_tokens)

    @staticmethod
    def _shared(prompts: Sequence[Sequence[int]]) -> int:
        columns = zip(*prompts, strict=True)
        same = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
        return same if len(prompts) > 1 and same >= LEAST_SHARED else 0

    def _run(self, tokens: list[tuple[int, int, int]], wanted: Iterable[int]) -> list[int]:
        """Compute (token, position, sequence) triples; the next tokens of the wanted ones."""
        wanted, sampled = set(wanted), []
        for start in range(0, len(tokens), self._batch_size):
            part = tokens[start : start + self._batch_size]
            batch = self._batch
            batch.n_tokens = len(part)
            for i, (token, position, sequence) in enumerate(part):
                batch.token[i], batch.pos[i] = token, position
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
                batch.logits[i] = start + i in wanted
            status = self._lib.llama_decode(self._context, batch)
            if status:
                raise RuntimeError(f"llama_decode returned {status}")
            sampled += [
                self._lib.llama_sampler_sample(self._sampler, self._context, i)
                for i in range(len(part))
                if start + i in wanted
            ]
        return sampled


if __name__ == "__main__":
    serve(LlamaCppEngine)
