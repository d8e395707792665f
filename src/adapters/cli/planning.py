# SPDX-License-Identifier: Apache-2.0
"""What a server would need and compile, from config.json alone.

The model is built on the meta device, so weights are neither read nor allocated. The sizes come
from its own parameters and KV specification, the programs from the buckets that warm-up uses.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs

from trnport import bootstrap
from trnport.adapters.cli.parser import SERVER_MEMORY_UTILIZATION
from trnport.core.config import NeuronConfig
from trnport.core.engine.buckets import Buckets
from trnport.core.engine.hidden import head_program_name, head_rows
from trnport.core.errors import CheckpointError, ConfigError
from trnport.core.kv import DEFAULT_BLOCK_SIZE, KVGroups
from trnport.core.kv.capacity import KVCapacity
from trnport.core.kv.spec import KVSpec
from trnport.core.model import model_bytes
from trnport.models.registry import resolve
from trnport.serving_defaults import with_defaults

SERVER_SEQS_PER_RANK = 128
"""``vllm serve``'s default of max_num_seqs on a CPU platform, for each rank."""

SERVER_TOKENS_PER_RANK = 2048
"""``vllm serve``'s default of max_num_batched_tokens on a CPU platform, for each rank."""

STEPS_IN_FLIGHT = 2
"""Steps scheduled and not yet reported, with asynchronous scheduling, which is the default."""


@attrs.frozen
class Limits:
    """The engine's limits, as vLLM names them."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int


@attrs.frozen
class Checkpoint:
    """The weights beside config.json; ``problem`` says why they cannot be read, if so."""

    num_bytes: int = 0
    num_tensors: int = 0
    problem: str = ""


@attrs.frozen
class Plan:
    """What a server with these settings would need and compile.

    Attributes:
        model: Directory of the checkpoint.
        tp: Tensor-parallel degree.
        dtype: Name of the dtype.
        limits: Limits, with the defaults filled in.
        memory_bytes: Memory that all ranks share.
        weight_bytes: Parameters and buffers of one rank.
        spec: Cache needs of one rank.
        capacity: What the cache memory of one rank holds.
        buckets: Padded shapes.
        programs: Names of the programs, in order of compilation.
        checkpoint: The stored weights.
    """

    model: str
    tp: int
    dtype: str
    limits: Limits
    memory_bytes: int
    weight_bytes: int
    spec: KVSpec
    capacity: KVCapacity
    buckets: Buckets
    programs: tuple[str, ...]
    checkpoint: Checkpoint

    @property
    def fits(self) -> bool:
        """Whether one request of full length can be served."""
        return self.capacity.requests(self.limits.max_model_len) > 0

    @property
    def host_bytes(self) -> int:
        """Weights and caches of all ranks."""
        cache = self.capacity.num_blocks * self.capacity.bytes_per_block
        return self.tp * (self.weight_bytes + cache)

    @property
    def smallest_cache_bytes(self) -> int:
        """Cache memory of one rank that serves one request of full length."""
        return self.capacity.bytes_for(1, self.limits.max_model_len)


def make_plan(
    model: str | Path,
    *,
    memory_bytes: int,
    tp: int = 1,
    dtype: str = "bfloat16",
    utilization: float = SERVER_MEMORY_UTILIZATION,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    block_size: int = DEFAULT_BLOCK_SIZE,
    neuron_config: dict[str, Any] | None = None,
) -> Plan:
    """Plan a server.

    Args:
        model: Directory with at least a config.json.
        memory_bytes: Memory that all ranks share.
        tp: Tensor-parallel degree.
        dtype: Dtype of weights and cache.
        utilization: Part of the memory that all ranks may use together.
        max_model_len: Most tokens of one request; the model's own limit when None.
        max_num_seqs: Most requests at a time; what ``vllm serve`` chooses when None.
        max_num_batched_tokens: Most prompt tokens in one step; likewise.
        block_size: Positions per KV block.
        neuron_config: Settings as in ``additional_config["neuron_config"]``.

    Raises:
        TrnportError: The same refusals as at the start of a server.
    """
    _check_positive(
        tensor_parallel_size=tp,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    hf_config = bootstrap.read_hf_config(model)
    resolve(hf_config.get("architectures"))
    limits = _fill_in(hf_config, tp, max_model_len, max_num_seqs, max_num_batched_tokens)
    settings = NeuronConfig.from_dict(
        with_defaults(
            neuron_config or {},
            is_bfloat16=dtype == "bfloat16",
            max_num_seqs=limits.max_num_seqs,
        ),
        **attrs.asdict(limits),
        tp=tp,
        block_size=block_size,
    )
    rank = bootstrap.build_model(
        hf_config,
        settings,
        dtype=bootstrap.SUPPORTED_DTYPES[dtype],
        collectives=bootstrap.planned_collectives(tp),
        kernels=bootstrap.kernels(),  # whichever compute, the sizes are the same
    )
    weight_bytes = model_bytes(rank)
    spec = rank.get_kv_spec()
    budget = bootstrap.planned_kv_cache_bytes(
        memory_bytes, utilization=utilization, tp=tp, model_bytes=weight_bytes
    )
    buckets = Buckets.from_config(settings, max_model_len=limits.max_model_len)
    return Plan(
        model=str(model),
        tp=tp,
        dtype=dtype,
        limits=limits,
        memory_bytes=memory_bytes,
        weight_bytes=weight_bytes,
        spec=spec,
        capacity=KVCapacity.of(
            spec,
            block_size=block_size,
            budget_bytes=budget,
            groups=KVGroups.by_window(spec),
            tokens_in_flight=STEPS_IN_FLIGHT * limits.max_num_batched_tokens,
        ),
        buckets=buckets,
        programs=program_names(buckets, settings),
        checkpoint=_read_checkpoint(model),
    )


def program_names(buckets: Buckets, settings: NeuronConfig) -> tuple[str, ...]:
    """Names of every program, in the order in which warm-up compiles them."""
    prefills = [signature.name for signature in buckets.all_prefill_signatures()]
    decodes = [signature.name for signature in buckets.all_decode_signatures()]
    heads = [head_program_name(head_rows(buckets))] if settings.enable_prompt_logprobs else []
    return (*prefills, *decodes, *heads)


def _check_positive(**given: int | None) -> None:
    # Before defaults are derived from them, so that the one at fault is named.
    for name, value in given.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} must be a positive integer")


def _fill_in(
    hf_config: dict[str, Any],
    tp: int,
    max_model_len: int | None,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
) -> Limits:
    length = hf_config.get("max_position_embeddings") if max_model_len is None else max_model_len
    if not isinstance(length, int):
        raise ConfigError(
            f"config.json gives max_position_embeddings={length!r}, which is no length; pass "
            "--max-model-len"
        )
    seqs = SERVER_SEQS_PER_RANK * tp if max_num_seqs is None else max_num_seqs
    tokens = max_num_batched_tokens
    if tokens is None:
        tokens = min(SERVER_TOKENS_PER_RANK * tp, seqs * length)
    if max_num_seqs is None:
        seqs = min(seqs, tokens)
    return Limits(length, seqs, tokens)


def _read_checkpoint(model: str | Path) -> Checkpoint:
    try:
        source = bootstrap.weight_source(model)
    except CheckpointError as error:
        return Checkpoint(problem=str(error))
    infos = [source.info(name) for name in source.names()]
    return Checkpoint(
        num_bytes=sum(math.prod(info.shape) * info.dtype.itemsize for info in infos),
        num_tensors=len(infos),
    )
