# SPDX-License-Identifier: Apache-2.0
"""The worker: one process that loads the model and runs vLLM's steps on it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from trnport import bootstrap
from trnport.adapters.vllm.capabilities import Capabilities
from trnport.adapters.vllm.checkpoint import checkpoint_folder
from trnport.adapters.vllm.device_thread import DeviceThread
from trnport.adapters.vllm.features import features_of
from trnport.adapters.vllm.groups import join_groups
from trnport.adapters.vllm.kv import LAYOUT, copy_blocks, groups_of, vllm_specs
from trnport.adapters.vllm.log import plugin_logger
from trnport.adapters.vllm.memory import host_memory, kv_cache_bytes
from trnport.adapters.vllm.openmp import release_threads
from trnport.adapters.vllm.pooling import TASK, PoolingRunner, is_pooling
from trnport.adapters.vllm.replicas import workers_here
from trnport.adapters.vllm.settings import neuron_config_of
from trnport.adapters.vllm.startup import StartUp, WarmUpLog
from trnport.adapters.vllm.steps import StepRunner
from trnport.adapters.vllm.telemetry import Telemetry
from trnport.core.model import model_bytes

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
    from vllm.v1.outputs import AsyncModelRunnerOutput, DraftTokenIds, ModelRunnerOutput

    from trnport.core.ports import Collectives

logger = plugin_logger(__name__)


class NeuronWorker(WorkerBase):
    """One rank.

    vLLM calls, in this order: ``init_device``, ``load_model``, ``get_kv_cache_spec``,
    ``determine_available_memory``, ``initialize_from_config``, ``compile_or_warm_up_model``;
    then ``execute_model`` and ``sample_tokens`` for every step.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        super().__init__(vllm_config, local_rank, rank, distributed_init_method, is_driver_worker)
        self._startup = StartUp(self.parallel_config)
        self._telemetry = Telemetry(vllm_config, local_rank)
        self._model: Any = None
        self._caches: dict[str, list[torch.Tensor]] = {}
        self._executor: Any = None
        self._steps: StepRunner | None = None
        self._pooling: PoolingRunner | None = None
        self._thread: DeviceThread | None = None

    # --- start-up ------------------------------------------------------------------------------

    def init_device(self) -> None:
        """Join vLLM's process groups."""
        from vllm.utils.torch_utils import set_random_seed

        self.device = torch.device(self.current_platform.device_type)
        self.parallel_config.disable_custom_all_reduce = True
        join_groups(
            self.parallel_config,
            self.rank,
            self.local_rank,
            self.distributed_init_method,
            self.current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Build the model on the meta device and read its weights.

        Raises:
            CheckpointError: The message names every tensor that is missing or does not fit.
        """
        started = time.monotonic()
        folder = checkpoint_folder(self.model_config, self.load_config)
        self._model = bootstrap.build_model(
            self.model_config.hf_text_config,
            neuron_config_of(self.vllm_config),
            dtype=self.model_config.dtype,
            collectives=self._collectives(),
            has_lm_head=features_of(self.vllm_config).generates,
            returns_logits=Capabilities.of(self.vllm_config).returns_logits,
        )
        logger.info("loading weights from %s", folder)
        with self._startup.phase("weights"):
            self._model.load_weights(bootstrap.weight_source(folder), device=self.device)
        num_bytes, seconds = model_bytes(self._model), time.monotonic() - started
        logger.info("loaded %.2f GiB of weights in %.1f s", num_bytes / 2**30, seconds)
        self._telemetry.loaded(num_bytes, seconds)

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """What each layer asks of the KV cache."""
        return vllm_specs(self._model.get_kv_spec(), self.cache_config.block_size)

    def get_supported_kv_cache_layouts(self) -> list[str]:
        """The one layout our caches have; vLLM would ask attention layers we do not use."""
        return [LAYOUT]

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache."""
        num_bytes = kv_cache_bytes(
            host_memory(),
            utilization=self.cache_config.gpu_memory_utilization,
            num_workers=workers_here(self.parallel_config),
            model_bytes=model_bytes(self._model),
            explicit=self.cache_config.kv_cache_memory_bytes,
        )
        logger.info("KV cache: %.2f GiB", num_bytes / 2**30)
        return num_bytes

    def update_max_model_len(self, max_model_len: int) -> None:
        """Take over the limit that vLLM fitted to the memory (``--max-model-len auto``)."""
        self.model_config.max_model_len = max_model_len

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the caches with as many blocks as the scheduler hands out."""
        block_size = self.cache_config.block_size
        groups = groups_of(kv_cache_config, block_size)
        with self._startup.phase("kv_cache"):
            self._caches = bootstrap.kv_cache_store().allocate(
                self._model.get_kv_spec(), kv_cache_config.num_blocks, block_size, groups
            )
        self._model.bind_kv_cache(self._caches)
        self._executor = bootstrap.build_executor(
            self._model,
            neuron_config_of(self.vllm_config),
            block_size=block_size,
            max_model_len=self.model_config.max_model_len,
            tp=self.parallel_config.tensor_parallel_size,
            device=self.current_platform.device_type,
            groups=groups,
            features=features_of(self.vllm_config),
            observer=self._telemetry.observer,
        )
        self._telemetry.allocated(kv_cache_config.num_blocks)
        if is_pooling(self.model_config):
            self._pooling = PoolingRunner(self.vllm_config, self._executor)
            return
        self._steps = StepRunner(self.vllm_config, self._executor)
        if self.scheduler_config.async_scheduling:
            self._thread = DeviceThread(self._execute, self._steps.sample, self._end_if_unheard)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Run every program once, unless that is to be put off; no other one can appear."""
        from vllm.utils.torch_utils import set_random_seed

        started = time.monotonic()
        lazy = neuron_config_of(self.vllm_config).warmup == "lazy"
        with self._startup.phase("warm_up"):
            self._executor.warm_up(WarmUpLog(), lazy=lazy)
        if self._thread:
            release_threads()  # from here on, that thread computes
        # Whatever start-up drew, unseeded sampling starts from the configured seed.
        set_random_seed(self.model_config.seed)
        self._telemetry.ready(expects_compilations=lazy)
        if self.local_rank == 0:
            self._startup.log(self._executor.program_origins)
        return CompilationTimes(language_model=time.monotonic() - started, encoder=0.0)

    # --- steps ---------------------------------------------------------------------------------

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """Compute what was scheduled; None means that ``sample_tokens`` has to follow.

        With asynchronous scheduling the step is only queued.
        """
        if self._pooling is not None:
            with self._around(scheduler_output):
                return self._pooling.execute(scheduler_output)
        execute = self._thread.execute if self._thread else self._execute
        return None if execute(scheduler_output) else EMPTY_MODEL_RUNNER_OUTPUT

    def sample_tokens(
        self, grammar_output: GrammarOutput | None
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        """Choose the next tokens of the step that ``execute_model`` computed."""
        sample = self._thread.sample if self._thread else self._runner.sample
        return sample(grammar_output)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """There is no speculative decoding, so there are no drafts."""
        return None

    # --- everything else vLLM may ask ------------------------------------------------------------

    def get_model(self) -> nn.Module:
        """The model, for inspection."""
        return self._model

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Text generation, or embeddings of texts."""
        return (TASK,) if is_pooling(self.model_config) else ("generate",)

    def profile(self, is_start: bool = True, profile_prefix: str | None = None) -> None:
        """Profiling has no adapter yet."""
        logger.warning_once("profiling is not supported; the request is ignored")

    def reset_encoder_cache(self) -> None:
        """There is no encoder."""

    def check_health(self) -> None:
        """A worker that answers is healthy."""

    def shutdown(self) -> None:
        """Let go of model and caches, after the step under way."""
        if self._thread:
            self._thread.close()
        self._thread = None
        self._telemetry.close()
        self._steps = self._pooling = self._executor = self._model = None
        self._caches = {}

    def _execute(self, schedule: SchedulerOutput) -> bool:
        with self._around(schedule):
            return self._runner.execute(schedule)

    def _around(self, schedule: SchedulerOutput) -> AbstractContextManager[None]:
        """What every step needs, whoever runs it: its block copies, then its telemetry."""
        if schedule.kv_cache_block_copies:
            copy_blocks(self._caches, schedule.kv_cache_block_copies)
        return self._telemetry.step(schedule)

    def _end_if_unheard(self, error: Exception) -> None:
        """End this process where vLLM would not learn of a failure.

        It listens to one rank only. That rank would wait for this one in a collective for
        ever, whereas the end of a process is noticed.
        """
        if not self.is_driver_worker:
            os.kill(os.getpid(), signal.SIGTERM)

    @property
    def _runner(self) -> StepRunner:
        if self._steps is None:
            raise RuntimeError("the worker has no KV cache yet; initialize_from_config comes first")
        return self._steps

    def _collectives(self) -> Collectives:
        """This rank's groups: vLLM's own tensor-parallel group, or one rank alone."""
        from vllm.distributed.parallel_state import get_tp_group

        if self.parallel_config.tensor_parallel_size == 1:
            return bootstrap.process_collectives({})
        return bootstrap.process_collectives({"tp": get_tp_group().device_group})
