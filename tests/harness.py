# SPDX-License-Identifier: Apache-2.0
"""Drive a model step by step and look at its logits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from trnport import bootstrap
from trnport.adapters.local import SingleCollectives
from trnport.adapters.paged import PagedKVCacheStore
from trnport.core.config import NeuronConfig
from trnport.core.engine.batch import BatchState, Request
from trnport.core.engine.executor import StepExecutor
from trnport.core.kv import KVGroups
from trnport.core.model import CausalLM
from trnport.core.ports import Collectives, Compiler, Kernels, WeightSource


@attrs.define(eq=False)
class Rig:
    """One rank's model and executor over NaN-filled caches."""

    model: CausalLM
    executor: StepExecutor
    caches: dict[str, list[Tensor]]
    block_size: int
    next_block: int = 1
    count: int = 0

    def request(self, tokens: Sequence[int], room: int = 0) -> Request:
        """A request that owns blocks for its tokens and ``room`` more."""
        needed = -(-(len(tokens) + room) // self.block_size)
        blocks = list(range(self.next_block, self.next_block + needed))
        # Descending, so that a block table is never the identity by accident.
        blocks.reverse()
        self.next_block += needed
        self.count += 1
        return Request(f"r{self.count}", list(tokens), len(tokens), block_ids=blocks)

    def run(self, requests: Sequence[Request], counts: Sequence[int]) -> dict[str, Tensor]:
        """One step: ``counts[i]`` new tokens of ``requests[i]``; logits by request id."""
        batch = BatchState()
        for request in requests:
            batch.add(request)
        scheduled = {r.request_id: n for r, n in zip(requests, counts, strict=True)}
        result = self.executor.execute(batch, scheduled)
        return dict(zip(result.request_ids, result.logits, strict=True))

    def teacher_forced(
        self, prompt: Sequence[int], forced: Sequence[int], chunks: Sequence[int] | None = None
    ) -> Tensor:
        """Logits after the prompt and after each forced token, ``[1 + len(forced), V]``."""
        request = self.request(prompt, room=len(forced))
        rows: dict[str, Tensor] = {}
        for count in chunks or [len(prompt)]:
            rows = self.run([request], [count])
        logits = [rows[request.request_id]]
        for token in forced:
            request.token_ids.append(token)
            logits.append(self.run([request], [1])[request.request_id])
        return torch.stack(logits)


def make_rig(
    path: Path,
    *,
    dtype: torch.dtype = torch.float32,
    max_model_len: int = 64,
    max_num_seqs: int = 4,
    block_size: int = 4,
    num_blocks: int = 200,
    neuron_config: Mapping[str, Any] | None = None,
    collectives: Collectives | None = None,
    kernels: Kernels | None = None,
    compiler: Compiler | None = None,
    source: WeightSource | None = None,
    fill: float = math.nan,
    warm_up: bool = False,
    by_window: bool = False,
) -> Rig:
    """Load a checkpoint over caches filled with ``fill``, one group of layers or several."""
    ranks = collectives or SingleCollectives()
    settings = NeuronConfig.from_dict(
        dict(neuron_config or {}),
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_model_len,
        tp=ranks.size("tp"),
    )
    model = bootstrap.build_model(
        bootstrap.read_hf_config(path), settings, dtype=dtype, collectives=ranks, kernels=kernels
    )
    model.load_weights(source or bootstrap.weight_source(path))
    spec = model.get_kv_spec()
    groups = KVGroups.by_window(spec) if by_window else None
    caches = PagedKVCacheStore(fill=fill).allocate(spec, num_blocks, block_size, groups)
    model.bind_kv_cache(caches)
    executor = bootstrap.build_executor(
        model,
        settings,
        block_size=block_size,
        max_model_len=max_model_len,
        tp=ranks.size("tp"),
        compiler=compiler,
        groups=groups,
    )
    if warm_up:
        executor.warm_up()
    return Rig(model, executor, caches, block_size)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest expected magnitude."""
    return float((actual - expected).abs().max() / expected.abs().max())


def reference_logits(model: Any, tokens: Sequence[int], last: int) -> Tensor:
    """Logits of Transformers for the last ``last`` positions of ``tokens``."""
    with torch.inference_mode():
        return model(torch.tensor([list(tokens)])).logits[0, -last:].float()


def incremental_logits(model: Any, prompt: Sequence[int], forced: Sequence[int]) -> Tensor:
    """Logits of Transformers with its own cache, one forced token at a time."""
    with torch.inference_mode():
        output = model(torch.tensor([list(prompt)]), use_cache=True)
        rows = [output.logits[0, -1]]
        for token in forced:
            output = model(
                torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True
            )
            rows.append(output.logits[0, -1])
    return torch.stack(rows).float()
