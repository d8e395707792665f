# SPDX-License-Identifier: Apache-2.0
"""What this release does not do, refused by name before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from trnport.adapters.vllm.pooling import pooling_problems
from trnport.bootstrap import SUPPORTED_DTYPES
from trnport.core.errors import ConfigError
from trnport.models.registry import resolve

LOAD_FORMATS = ("auto", "hf", "safetensors")

Rule = Callable[[Any], Iterator[str]]
"""Yields one sentence for each unsupported setting in a VllmConfig."""


def check_supported(vllm_config: Any) -> None:
    """Refuse a configuration that asks for something unsupported.

    Args:
        vllm_config: A ``vllm.config.VllmConfig`` with a model.

    Raises:
        ConfigError: Lists every unsupported setting and what to do about it.
    """
    problems = [problem for rule in RULES for problem in rule(vllm_config)]
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError("unsupported settings:\n" + "\n".join(f"- {p}" for p in problems))


def _model(vllm_config: Any) -> Iterator[str]:
    config = vllm_config.model_config
    if config.runner_type == "pooling":
        yield from pooling_problems(vllm_config)
    elif config.runner_type != "generate":
        yield f"runner={config.runner_type!r} is not supported; use 'generate' or 'pooling'"
    if config.dtype not in SUPPORTED_DTYPES.values():
        yield _dtype_message(config.dtype)
    if config.quantization is not None:
        yield (
            f"quantization={config.quantization!r} is not supported; "
            "use an unquantised float32 or bfloat16 checkpoint"
        )
    if config.multimodal_config is not None:
        yield "multimodal inputs are not supported; choose a text-only model"
    if config.enable_sleep_mode:
        yield "enable_sleep_mode is not supported; leave it out"
    if config.enable_trace_replay:
        yield "enable_trace_replay is not supported; leave it out"
    if config.return_sampling_mask:
        yield "return_sampling_mask is not supported; leave it out"
    try:
        resolve(config.architectures)
    except ConfigError as error:
        yield str(error)


def _dtype_message(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    why = ""
    if dtype == torch.float16:
        why = ", whose range the activations of models trained in bfloat16 exceed"
    return f"dtype={name}{why} is not supported; use bfloat16 or float32"


def _cache(vllm_config: Any) -> Iterator[str]:
    config = vllm_config.cache_config
    allowed = {"auto", str(vllm_config.model_config.dtype).removeprefix("torch.")}
    if config.cache_dtype not in allowed:
        yield (
            f"kv_cache_dtype={config.cache_dtype!r} is not supported; the cache has the dtype of "
            "the model: use 'auto'"
        )
    if config.kv_offloading_size:
        yield f"kv_offloading_size={config.kv_offloading_size} is not supported; leave it out"


def _parallel(vllm_config: Any) -> Iterator[str]:
    config = vllm_config.parallel_config
    sizes = {
        "pipeline_parallel_size": "layers are never split over ranks here; use 1",
        "prefill_context_parallel_size": "use 1",
        "decode_context_parallel_size": "use 1",
    }
    for name, way_out in sizes.items():
        if getattr(config, name) > 1:
            yield f"{name}={getattr(config, name)} is not supported; {way_out}"
    if config.data_parallel_size > 1 and vllm_config.model_config.is_moe:
        yield (
            f"data_parallel_size={config.data_parallel_size} is not supported for models with "
            "experts; start one server for each replica behind a load balancer"
        )
    if config.nnodes > 1:
        yield f"nnodes={config.nnodes} is not supported; all ranks run on one machine: use 1"
    if config.data_parallel_backend != "mp":
        yield f"data_parallel_backend={config.data_parallel_backend!r} is not supported; use 'mp'"
    if config.distributed_executor_backend == "ray":
        yield "distributed_executor_backend='ray' is not supported; use 'mp'"
    if config.enable_expert_parallel:
        yield "enable_expert_parallel is not supported: no supported model has experts"


def _features(vllm_config: Any) -> Iterator[str]:
    features = {
        "lora_config": "LoRA (enable_lora) is not supported; merge the adapter into the weights",
        "speculative_config": "speculative decoding (speculative_config) is not supported",
        "kv_transfer_config": "KV transfer (kv_transfer_config) is not supported",
        "ec_transfer_config": "encoder cache transfer (ec_transfer_config) is not supported",
        "diffusion_config": "diffusion decoding (diffusion_config) is not supported",
        "watermark_config": "watermarking (watermark_config) is not supported",
        "weight_transfer_config": "weight transfer (weight_transfer_config) is not supported",
    }
    for name, message in features.items():
        if getattr(vllm_config, name) is not None:
            yield message if ";" in message else f"{message}; leave it out"


def _loading(vllm_config: Any) -> Iterator[str]:
    load_format = vllm_config.load_config.load_format
    if load_format not in LOAD_FORMATS:
        yield (
            f"load_format={load_format!r} is not supported; weights are read from safetensors "
            f"files: use one of {', '.join(LOAD_FORMATS)}"
        )
    offload = vllm_config.offload_config
    if offload.uva.cpu_offload_gb or offload.prefetch.offload_group_size:
        yield "weight offloading is not supported; leave cpu_offload_gb and offload_* out"


RULES: tuple[Rule, ...] = (_model, _cache, _parallel, _features, _loading)
