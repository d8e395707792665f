# SPDX-License-Identifier: Apache-2.0
"""The composition root: the one place that chooses adapters.

Everything is decided by explicit arguments and a validated NeuronConfig. Nowhere else
does code ask which backend it runs on.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch.distributed import ProcessGroup

from trnport import toolchain
from trnport.adapters.distributed import DistributedCollectives
from trnport.adapters.eager import EagerCompiler
from trnport.adapters.fake import FakeCollectives
from trnport.adapters.kernel_sets import KernelSets
from trnport.adapters.local import LocalWorld, SingleCollectives
from trnport.adapters.paged import PagedKVCacheStore
from trnport.adapters.program_cache import ProgramCache, upkeep
from trnport.adapters.safetensors import SafetensorsWeightSource
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.config import NeuronConfig
from trnport.core.context import ModelContext, ProgramSampling
from trnport.core.engine.buckets import Buckets
from trnport.core.engine.executor import Progress, StepExecutor
from trnport.core.engine.features import Features
from trnport.core.engine.inputs import InputBuilder
from trnport.core.engine.observer import StepObserver
from trnport.core.engine.sampling import SamplingParams
from trnport.core.engine.sampling_inputs import SamplingInputBuilder
from trnport.core.engine.session import Limits, Session
from trnport.core.engine.tables import table_kinds
from trnport.core.errors import CheckpointError, ConfigError
from trnport.core.kv import DEFAULT_BLOCK_SIZE, KVGroups
from trnport.core.model import CausalLM
from trnport.core.ports import Collectives, Compiler, Kernels, KVCacheStore, WeightSource
from trnport.models.registry import resolve
from trnport.serving_defaults import NATIVE

_T = TypeVar("_T")


def nki_kernels(
    *, target: str = "trn2", lnc: int = 1, precise: bool = False, strict: bool = False
) -> Kernels:
    """Our NKI kernels; what they cannot take is computed by torch_cpu.

    Args:
        target: "trn2" or "trn3".
        lnc: Physical cores of a logical one, 1 or 2.
        precise: Simulate floats as fp32, to tell errors of logic from rounding.
        strict: Refuse a call that no kernel can take.

    Raises:
        ConfigError: An argument is out of range, or the simulator's packages are missing.
    """
    made: Kernels = load_nki("adapter").NkiKernels(
        TorchCpuKernels(), target=target, lnc=lnc, precise=precise, strict=strict
    )
    return made


def load_nki(name: str) -> Any:
    """A module of the nki adapter, whose packages are an extra.

    Raises:
        ConfigError: A package is missing; the message names it and the extra.
    """
    try:
        return importlib.import_module(f"trnport.adapters.nki.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "trnport":
            raise
        raise ConfigError(
            f"kernels='nki' needs {error.name}; install the extra: pip install 'trnport[nki]'"
        ) from error


def native_kernels(name: str = "native") -> Kernels:
    """C++ kernels for this machine's CPU, compiled at the first use and kept.

    Args:
        name: One of :data:`trnport.serving_defaults.NATIVE`.

    Raises:
        ConfigError: There is no C++ compiler.
        CompilationError: It failed.
    """
    from trnport.adapters import native

    cxx = toolchain.require_toolchain(f"kernels={name!r}")
    native.load(program_cache(), cxx, toolchain.target())
    return native.SETS[name](TorchCpuKernels())


KERNEL_SETS = KernelSets(
    {
        "torch_cpu": TorchCpuKernels,
        **{name: functools.partial(native_kernels, name) for name in NATIVE},
        "nki": nki_kernels,
    }
)
"""Every set of kernels by name; :meth:`KernelSets.register` adds one."""


def _neuronx() -> Compiler:
    from trnport.adapters.neuronx import NeuronxCompiler

    return NeuronxCompiler()


def _inductor() -> Compiler:
    from trnport.adapters.inductor import InductorCompiler

    return InductorCompiler(program_cache())


_COMPILERS: MappingProxyType[str, Callable[[], Compiler]] = MappingProxyType(
    {"eager": EagerCompiler, "inductor": _inductor, "neuronx": _neuronx}
)

SUPPORTED_DTYPES = MappingProxyType({"bfloat16": torch.bfloat16, "float32": torch.float32})
"""By name, the preferred one first."""


def kernels(name: str = "torch_cpu", **nki_options: Any) -> Kernels:
    """The set of operators that a setting spells.

    Args:
        name: A set, or a composition such as "torch_cpu+decode_attention:mine".
        nki_options: Arguments of :func:`nki_kernels`, where "nki" is part of it.

    Raises:
        ConfigError: There is no such set or operator; the message lists the names.
    """
    return KERNEL_SETS.build(name, {"nki": functools.partial(nki_kernels, **nki_options)})


def check_kernels(name: str) -> None:
    """Look up the names in a setting of kernels, without loading any.

    Raises:
        ConfigError: There is no such set or operator, and the message lists the names; or one
            of the native sets is among them and there is no C++ compiler.
    """
    for used in KERNEL_SETS.check(name):
        if used in NATIVE:
            toolchain.require_toolchain(f"kernels={used!r}")


def compiler(name: str = "eager") -> Compiler:
    """The Compiler adapter of that name.

    Raises:
        ConfigError: There is none, and the message lists the names; or it lacks something here,
            and the message says what.
    """
    return _choose("compiler", name, _COMPILERS)


def program_cache() -> ProgramCache:
    """The cache of compiled programs that the environment names, or the user's own one.

    Raises:
        ConfigError: The environment names a folder that does not exist.
    """
    return ProgramCache.from_environment()


def verify_programs(cache: ProgramCache) -> Iterator[tuple[str, str]]:
    """Key and problem of every damaged program."""
    return upkeep.verify(cache)


def prune_programs(
    cache: ProgramCache, *, max_bytes: int | None = None, max_age: float | None = None
) -> upkeep.Removed:
    """Remove what is damaged or left over, and programs over a size or an age in seconds."""
    return upkeep.prune(cache, max_bytes=max_bytes, max_age=max_age)


def kv_cache_store() -> KVCacheStore:
    """The store of paged KV caches."""
    return PagedKVCacheStore()


def weight_source(path: str | Path) -> WeightSource:
    """The checkpoint at a directory or file.

    Raises:
        CheckpointError: It is missing, unreadable or damaged; the message names the file.
    """
    return SafetensorsWeightSource(path)


def read_hf_config(path: str | Path) -> dict[str, Any]:
    """The dictionary in a checkpoint's config.json.

    Raises:
        CheckpointError: The file is missing or is not JSON.
    """
    file = Path(path) / "config.json"
    try:
        config: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{file} does not exist; give a Hugging Face checkpoint") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} holds no JSON object; give a Hugging Face checkpoint")
    return config


def build_model(
    hf_config: Any,
    neuron_config: NeuronConfig,
    *,
    dtype: torch.dtype,
    collectives: Collectives | None = None,
    kernels: Kernels | None = None,
    has_lm_head: bool = True,
    returns_logits: bool = True,
) -> CausalLM:
    """Build the model an architecture names, on the meta device.

    Args:
        hf_config: A Transformers configuration or the dictionary in config.json.
        neuron_config: Validated settings.
        dtype: Dtype of weights, activations and cache.
        collectives: This rank's groups; one rank alone when None.
        kernels: Operators; those that ``neuron_config`` names when None.
        has_lm_head: Whether the model computes logits, or hidden states alone.
        returns_logits: Whether programs that sample return logits as well.

    Raises:
        UnsupportedModelError: No model is registered for the architecture.
        UnsupportedConfigError: The model does not implement a field of the configuration.
        ConfigError: The dtype is not supported, or the compiler lacks something.
    """
    _check_compiler(neuron_config.compiler)
    if dtype not in SUPPORTED_DTYPES.values():
        raise ConfigError(
            f"dtype={dtype} is not supported; choose one of {sorted(SUPPORTED_DTYPES)}"
        )
    architectures = (
        hf_config.get("architectures") if isinstance(hf_config, dict) else hf_config.architectures
    )
    context = ModelContext.of(
        kernels or KERNEL_SETS.build(neuron_config.kernels),
        collectives or SingleCollectives(),
        _program_sampling(neuron_config, returns_logits),
        has_lm_head=has_lm_head,
    )
    model: CausalLM = resolve(architectures).from_configs(
        hf_config, neuron_config, context=context, dtype=dtype
    )
    return model


def build_executor(
    model: CausalLM,
    neuron_config: NeuronConfig,
    *,
    block_size: int,
    max_model_len: int,
    tp: int = 1,
    device: torch.device | str = "cpu",
    compiler: Compiler | None = None,
    groups: KVGroups | None = None,
    features: Features | None = None,
    observer: StepObserver | None = None,
) -> StepExecutor:
    """Wire a loaded model with bound caches to a compiler.

    Args:
        model: The model; its caches are bound by the caller.
        neuron_config: Validated settings.
        block_size: Positions per KV block.
        max_model_len: Most tokens of one request.
        tp: Tensor-parallel degree.
        device: Device of the step inputs.
        compiler: Compiler; the one that ``neuron_config`` names when None.
        groups: Which layers share a block table; all of them when None.
        features: What the programs take and return; what ``neuron_config`` says when None.
        observer: Told about every compilation and run of a program.
    """
    spec = model.get_kv_spec()
    inputs = InputBuilder(
        buckets=Buckets.from_config(neuron_config, max_model_len=max_model_len),
        layer_names=tuple(layer.name for layer in spec.layers),
        block_size=block_size,
        tp=tp,
        device=torch.device(device),
        kinds=table_kinds(spec, groups),
        features=features or Features.from_config(neuron_config),
    )
    chosen = compiler or _choose("compiler", neuron_config.compiler, _COMPILERS)
    sampling = SamplingInputBuilder.of(neuron_config, model.vocab_size, device)
    return StepExecutor(model, chosen, inputs, sampling=sampling, observer=observer)


def _program_sampling(config: NeuronConfig, returns_logits: bool) -> ProgramSampling | None:
    on_device = config.on_device_sampling_config
    if on_device is None:
        return None
    return ProgramSampling(all_greedy=on_device.all_greedy, returns_logits=returns_logits)


def process_collectives(groups: Mapping[str, ProcessGroup]) -> Collectives:
    """This process's torch.distributed groups by name; without any, one rank alone."""
    return DistributedCollectives(groups) if groups else SingleCollectives()


def planned_collectives(tp: int) -> Collectives:
    """Rank 0 of ``tp`` ranks that do not exist: it knows its place and cannot communicate.

    A model built on the meta device with it has the shapes of a real rank's.

    Raises:
        ConfigError: ``tp`` is below 1.
    """
    return LocalWorld(tp).ranks[0]


def shape_collectives(tp: int) -> Collectives:
    """Rank 0 of ``tp`` ranks that do not exist; what it receives has the right shapes only."""
    return FakeCollectives(0, tp)


def planned_kv_cache_bytes(
    memory_bytes: int, *, utilization: float, tp: int, model_bytes: int
) -> int:
    """Bytes that the server would give each of ``tp`` ranks' KV cache.

    Args:
        memory_bytes: Memory of the machine, all of it free.
        utilization: The part that all ranks may use together.
        tp: Ranks on the machine.
        model_bytes: Parameters and buffers of one rank.
    """
    from trnport.adapters.vllm.memory import HostMemory, kv_cache_bytes

    return kv_cache_bytes(
        HostMemory(total=memory_bytes, available=memory_bytes),
        utilization=utilization,
        num_workers=tp,
        model_bytes=model_bytes,
    )


def vllm_decision() -> tuple[bool, str]:
    """Whether an installed vLLM would run on trnport here, and why. Imports no vLLM."""
    from trnport.adapters.vllm.activation import decide

    decision = decide()
    return decision.active, decision.reason


def check_vllm_device() -> None:
    """Load the vLLM platform and let it check the environment and the device.

    Raises:
        ConfigError: The platform would refuse to start; the message says what to do.
        ImportError: vLLM is absent or damaged.
    """
    from trnport.adapters.vllm.platform import check_device

    check_device()


def open_session(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    max_model_len: int = 2048,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int | None = None,
    block_size: int = DEFAULT_BLOCK_SIZE,
    num_blocks: int | None = None,
    neuron_config: dict[str, Any] | None = None,
    source: WeightSource | None = None,
    collectives: Collectives | None = None,
    kernels: Kernels | None = None,
    compiler: Compiler | None = None,
    store: KVCacheStore | None = None,
    progress: Progress | None = None,
) -> Session:
    """Load a checkpoint and return a warmed-up engine that needs no vLLM.

    Args:
        path: A Hugging Face checkpoint directory.
        dtype: float32 or bfloat16.
        max_model_len: Most tokens of one request, prompt and output together.
        max_num_seqs: Most requests at a time.
        max_num_batched_tokens: Most prompt tokens in one program; ``max_model_len`` when None.
        block_size: Positions per KV block.
        num_blocks: KV blocks, the null block included; enough for ``max_num_seqs`` requests
            of full length when None.
        neuron_config: Settings as in ``additional_config["neuron_config"]``.
        source: Weights; the checkpoint's when None.
        collectives: This rank's groups; one rank alone when None.
        kernels: Operators; those that ``neuron_config`` names when None.
        compiler: Compiler; the one that ``neuron_config`` names when None.
        store: Allocates the caches; paged torch tensors when None.
        progress: Told about every warm-up program.

    Raises:
        TrnportError: Anything about the settings, the model or the checkpoint that cannot
            work, before weights are read wherever it can be known by then.
    """
    ranks = collectives or SingleCollectives()
    settings = NeuronConfig.from_dict(
        neuron_config or {},
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens or max_model_len,
        tp=ranks.size("tp"),
        block_size=block_size,
    )
    _check_traceable(settings.compiler, ranks)
    model = build_model(
        read_hf_config(path),
        settings,
        dtype=dtype,
        collectives=ranks,
        kernels=kernels,
        returns_logits=False,
    )
    model.load_weights(source or weight_source(path))
    blocks_per_request = -(-max_model_len // block_size)
    limits = Limits(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_prefill_tokens=settings.num_batched_tokens_buckets[-1],
        block_size=block_size,
        num_blocks=num_blocks or max_num_seqs * blocks_per_request + 1,
        vocab_size=model.vocab_size,
    )
    caches = (store or kv_cache_store()).allocate(
        model.get_kv_spec(), limits.num_blocks, block_size
    )
    model.bind_kv_cache(caches)
    executor = build_executor(
        model,
        settings,
        block_size=block_size,
        max_model_len=max_model_len,
        tp=ranks.size("tp"),
        compiler=compiler,
        features=Features(),
    )
    executor.warm_up(progress, lazy=settings.warmup == "lazy")
    on_device = settings.on_device_sampling_config
    defaults: dict[str, Any] = {"temperature": 0, **(on_device.defaults if on_device else {})}
    return Session(executor, limits, SamplingParams(**defaults))


def _check_compiler(name: str) -> None:
    # A model is built long before its programs, and its weights are read in between.
    if name == "neuronx":
        from trnport.adapters.neuronx import check_available

        check_available()
    if name == "inductor":
        toolchain.require_toolchain()


def _check_traceable(compiler: str, collectives: Collectives) -> None:
    if compiler == "inductor" and not collectives.traceable:
        raise ConfigError(
            f"compiler={compiler!r} cannot record {type(collectives).__name__}; run each rank in a "
            "process of its own, as vLLM does, or use compiler='eager'"
        )


def _choose(setting: str, name: str, adapters: MappingProxyType[str, Callable[[], _T]]) -> _T:
    if name not in adapters:
        raise ConfigError(f"{setting}={name!r} is not available; choose one of {sorted(adapters)}")
    return adapters[name]()
