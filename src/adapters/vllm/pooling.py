# SPDX-License-Identifier: Apache-2.0
"""Embeddings of texts: prefill programs, then vLLM's own pooler on their hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.pooler.seqwise import pooler_for_embed
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

from trnport.adapters.vllm.sampled import SampledRequests
from trnport.adapters.vllm.translate import apply_schedule
from trnport.core.engine.batch import BatchState
from trnport.core.engine.executor import StepExecutor
from trnport.core.engine.hidden import HiddenRows

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput

TASK = "embed"
"""The one pooling task."""

WHOLE_PROMPT_POOLING = ("CLS", "MEAN")
"""Pooling that needs all of a prompt's hidden states in one step."""


def is_pooling(model_config: ModelConfig) -> bool:
    """Whether the engine embeds texts and generates none."""
    return model_config.runner_type == "pooling"


def pooling_problems(vllm_config: Any) -> Iterator[str]:
    """One sentence for each setting of a pooling engine that is not supported."""
    config, pooler = vllm_config.model_config, vllm_config.model_config.pooler_config
    if config.convert_type not in ("none", TASK):
        yield f"convert={config.convert_type!r} is not supported; use {TASK!r}"
    if pooler.task not in (None, TASK):
        yield f"the pooling task {pooler.task!r} is not supported; use {TASK!r}"
    if pooler.seq_pooling_type in WHOLE_PROMPT_POOLING:
        switches = {
            "enable_chunked_prefill": vllm_config.scheduler_config.enable_chunked_prefill,
            "enable_prefix_caching": vllm_config.cache_config.enable_prefix_caching,
        }
        for name in (name for name, is_on in switches.items() if is_on):
            yield (
                f"{pooler.seq_pooling_type} pooling with {name} is not supported, since it needs "
                f"a whole prompt in one step; leave {name} out"
            )


class PoolingRunner:
    """The state of a worker's steps; each one is complete at once, since nothing is sampled."""

    def __init__(self, vllm_config: VllmConfig, executor: StepExecutor) -> None:
        self._executor = executor
        self._batch = BatchState()
        self._params: dict[str, Any] = {}
        with set_current_vllm_config(vllm_config):
            self._pooler = pooler_for_embed(vllm_config.model_config.pooler_config)

    @property
    def num_requests(self) -> int:
        """Requests held, for tests of leaks."""
        return len(self._batch)

    @torch.inference_mode()
    def execute(self, schedule: SchedulerOutput) -> ModelRunnerOutput:
        """Run the model and pool the prompts that it completed."""
        apply_schedule(self._batch, SampledRequests(), schedule)
        for request_id in schedule.finished_req_ids:
            self._params.pop(request_id, None)
        for new in schedule.scheduled_new_reqs:
            self._params[new.req_id] = new.pooling_params
        if not schedule.num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        hidden = self._executor.execute(self._batch, schedule.num_scheduled_tokens).hidden_states
        ids = list(schedule.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            pooler_output=[self._pool(request_id, hidden[request_id]) for request_id in ids],
        )

    def _pool(self, request_id: str, hidden: HiddenRows) -> Tensor | None:
        """One request's embedding, or None in the middle of its prompt."""
        request = self._batch[request_id]
        if request.num_computed_tokens < request.num_prompt_tokens:
            return None
        length = torch.tensor([request.num_prompt_tokens])
        rows = hidden.rows.cpu()
        metadata = PoolingMetadata(
            prompt_lens=length,
            prompt_token_ids=None,
            prompt_token_ids_cpu=None,
            pooling_params=[self._params[request_id]],
            pooling_states=[PoolingStates()],
        )
        counts = torch.tensor([rows.shape[0]]).numpy()
        metadata.build_pooling_cursor(counts, length, device=rows.device)
        (embedding,) = self._pooler(rows, metadata)
        return embedding.float()
