# SPDX-License-Identifier: Apache-2.0
"""The platform class: what vLLM asks about the machine and about a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from trnport.adapters.vllm.activation import neuron_device_exists
from trnport.adapters.vllm.capabilities import Capabilities
from trnport.adapters.vllm.env import read_environment, set_defaults
from trnport.adapters.vllm.log import configure_logs, plugin_logger
from trnport.adapters.vllm.meanwhile import prepare_http_server
from trnport.adapters.vllm.metric_folder import prepare_metrics
from trnport.adapters.vllm.replicas import remember_replicas, workers_here
from trnport.adapters.vllm.shutdown import install_stop_filter
from trnport.adapters.vllm.start_method import resume_collector
from trnport.adapters.vllm.startup import remember_start
from trnport.core.errors import ConfigError
from trnport.core.kv import DEFAULT_BLOCK_SIZE

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from trnport.core.config import NeuronConfig
    from trnport.core.model import CausalLM

logger = plugin_logger(__name__)

WORKER = "trnport.adapters.vllm.worker.NeuronWorker"

SHUTDOWN_TIMEOUT = 10
"""Seconds in which a server that is told to stop may finish its requests and its processes."""


class NeuronPlatform(Platform):
    """vLLM on trnport.

    Programs run on the host's CPU; there is no device adapter in this release. That is why
    the device is called "cpu": vLLM hands the name to torch as a device type.
    """

    _enum = PlatformEnum.OOT
    device_name: str = "cpu"
    device_type: str = "cpu"
    dispatch_key: str = "CPU"
    ray_device_key: str = "neuron_cores"
    device_control_env_var: str = "NEURON_RT_VISIBLE_CORES"
    dist_backend: str = "gloo"
    # vLLM compiles one helper of its sampler with this backend; "inductor" would need a C++
    # compiler on the user's machine to count a few logprobs.
    simple_compile_backend: str = "eager"
    # What requests are checked against. vLLM shows us requests without their engine, so it is
    # the one whose configuration this process built last.
    capabilities: ClassVar[Capabilities] = Capabilities()

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """Dtypes for ``dtype="auto"``; the first replaces those that are not in the list."""
        from trnport.bootstrap import SUPPORTED_DTYPES

        return list(SUPPORTED_DTYPES.values())

    def is_cpu(self) -> bool:
        """Whether tensors live in host memory.

        vLLM also asks this before it calls accelerator functions of torch, at shutdown for
        one, which raise where torch has no accelerator.
        """
        return self.device_type == "cpu"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Name for vLLM's messages."""
        return cls.device_name

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes of memory."""
        from trnport.adapters.vllm.memory import host_memory

        return host_memory().total

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """There is one device; nothing to choose."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Sampling happens on the host, whose generator vLLM seeds itself."""

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Pinned memory serves copies to a device."""
        return False

    @classmethod
    def get_compile_backend(cls) -> str:
        """Backend for vLLM's own model compilation, which has no model to compile here.

        The default value, since vLLM warns about any other one.
        """
        return "inductor"

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Sliding-window layers have block tables of their own, so old blocks can be freed."""
        return True

    @classmethod
    def import_kernels(cls) -> None:
        """We bring our own kernels; vLLM's empty build has none to import."""

    @classmethod
    def pre_register_and_update(cls, parser: Any = None) -> None:
        """Refuse an impossible device before vLLM builds any configuration.

        With a parser vLLM is only assembling its command line, and ``--help`` should work
        wherever it is run.
        """
        if parser is None:
            check_device()
            set_defaults()

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Fill in our defaults and refuse what this release does not do.

        vLLM calls this again whenever it copies a configuration, so it is idempotent.

        Raises:
            ConfigError: The message names the setting, its value and the way out.
        """
        configure_logs()
        check_device()
        remember_replicas(vllm_config.parallel_config)
        remember_start(vllm_config.parallel_config)
        resume_collector()
        set_defaults(workers_here(vllm_config.parallel_config))
        _choose_worker(vllm_config)
        _choose_block_size(vllm_config)
        _choose_cache_size(vllm_config)
        _choose_shutdown_timeout(vllm_config)
        install_stop_filter()
        # vLLM builds configurations without a model in some of its own helpers.
        if vllm_config.model_config is not None:
            _check_model(vllm_config)
            cls.capabilities = Capabilities.of(vllm_config)
            prepare_metrics()
            prepare_http_server(vllm_config)

    @classmethod
    def log_warnings(cls) -> None:
        """Choose the format of our log lines again: vLLM has just configured its own."""
        configure_logs()

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """The block size is settled by :meth:`check_and_update_config`."""

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Refuse one request that cannot be served as asked."""
        from trnport.adapters.vllm.requests import check_request

        check_request(processed_inputs, params, cls.capabilities)


def check_device() -> None:
    """Refuse the device asked for, or found, when this release cannot run on it.

    Raises:
        ConfigError: TRNPORT_DEVICE is invalid, or means a Neuron device.
    """
    asked = read_environment().device
    if (asked or ("neuron" if neuron_device_exists() else "cpu")) == "neuron":
        raise ConfigError(
            "this release of trnport runs programs on the host's CPU only, not on Neuron devices "
            "yet; set TRNPORT_DEVICE=cpu to use it that way"
        )


def _choose_worker(vllm_config: VllmConfig) -> None:
    if vllm_config.parallel_config.worker_cls == "auto":
        vllm_config.parallel_config.worker_cls = WORKER


def _choose_block_size(vllm_config: VllmConfig) -> None:
    cache_config = vllm_config.cache_config
    if not cache_config.user_specified_block_size:
        cache_config.block_size = DEFAULT_BLOCK_SIZE


def _choose_cache_size(vllm_config: VllmConfig) -> None:
    gibibytes = read_environment().kv_cache_gib
    if gibibytes and vllm_config.cache_config.kv_cache_memory_bytes is None:
        vllm_config.cache_config.kv_cache_memory_bytes = gibibytes * 2**30


def _choose_shutdown_timeout(vllm_config: VllmConfig) -> None:
    # Without one vLLM kills the engine at once, and the server may log its death as an error.
    # Running requests get this long to finish, in seconds.
    if vllm_config.shutdown_timeout == 0:
        vllm_config.shutdown_timeout = SHUTDOWN_TIMEOUT


def _check_model(vllm_config: VllmConfig) -> None:
    from trnport.adapters.vllm.features import features_of
    from trnport.adapters.vllm.refusals import check_supported
    from trnport.adapters.vllm.scheduling import choose_scheduler
    from trnport.adapters.vllm.settings import neuron_config_of
    from trnport.bootstrap import build_model, kernels, planned_collectives

    check_supported(vllm_config)
    neuron_config = neuron_config_of(vllm_config)
    logger.info_once("neuron_config, defaults filled in: %s", neuron_config.describe())
    choose_scheduler(vllm_config, neuron_config.schedule_policy)
    model_config = vllm_config.model_config
    # On the meta device this costs milliseconds and finds what the architecture refuses here,
    # in the user's process, instead of in a worker's log.
    model = build_model(
        model_config.hf_text_config,
        neuron_config,
        dtype=model_config.dtype,
        collectives=planned_collectives(vllm_config.parallel_config.tensor_parallel_size),
        kernels=kernels(),  # those that compute may have to be compiled first
        has_lm_head=features_of(vllm_config).generates,
    )
    _choose_prefix_caching(vllm_config, model)
    _choose_sampling_defaults(vllm_config, neuron_config)


def _choose_sampling_defaults(vllm_config: VllmConfig, neuron_config: NeuronConfig) -> None:
    on_device = neuron_config.on_device_sampling_config
    if on_device is not None:
        overrides = vllm_config.model_config.override_generation_config
        for name, value in on_device.defaults.items():
            overrides.setdefault(name, value)


def _choose_prefix_caching(vllm_config: VllmConfig, model: CausalLM) -> None:
    cache_config = vllm_config.cache_config
    limit = vllm_config.model_config.max_model_len
    if cache_config.enable_prefix_caching and model.cache_depends_on_seq_len(limit):
        logger.warning_once(
            "prefix caching is off: the model's rotary embedding depends on the length of a "
            "sequence beyond its original length, so sequences cannot share cached keys"
        )
        cache_config.enable_prefix_caching = False
