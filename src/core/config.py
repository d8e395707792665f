# SPDX-License-Identifier: Apache-2.0
"""Settings of the engine: ``additional_config["neuron_config"]``.

The names are those of the published vLLM Neuron configuration. A key that this release does
not implement is known by name and refused unless it holds its neutral value, so that no
setting is ever silently ignored. The options table in the documentation is generated from the
metadata of these fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs

from trnport.core.config_fields import (
    ascending,
    at_least,
    boolean,
    fail,
    one_of,
    option,
    planned,
    sets_of_kernels,
    to_on_device_sampling,
)
from trnport.core.config_keys import check_known
from trnport.core.errors import ConfigError
from trnport.core.sampling_config import OnDeviceSamplingConfig

SMALLEST_DEFAULT_TOKENS_BUCKET = 128
"""Smaller default programs would save little: 128 is the width of one attention tile."""

SMALLEST_PREFILL_BUCKET = 2
"""A program of one token takes the decode path."""

SCHEDULE_POLICIES = ("mixed", "prefill_first", "decode_first")


@attrs.frozen(kw_only=True)
class NeuronConfig:
    """Validated settings. Build it with :meth:`from_dict`, which knows the limits.

    The fields and their meaning are listed in docs/options.md.

    Raises:
        ConfigError: A value is out of range or not implemented; the message names the key.
    """

    num_batched_tokens_buckets: tuple[int, ...] = option(
        "list of integers",
        "Numbers of prompt tokens for which a prefill program exists. A chunk of a prompt, or the "
        "chunks that share a program, run in the smallest one that holds them.",
        "at least 2, strictly ascending, the last one equal to "
        "min(max_num_batched_tokens, max_model_len), or up to max_prefills_per_batch times that "
        "length where several prompts share a program",
        ascending(SMALLEST_PREFILL_BUCKET),
        default=attrs.NOTHING,
        default_doc="powers of two from 128, then the limit",
    )
    num_seqs_buckets: tuple[int, ...] = option(
        "list of integers",
        "Numbers of sequences for which a decode program exists.",
        "positive, strictly ascending, the last one equal to max_num_seqs",
        ascending(1),
        default=attrs.NOTHING,
        default_doc="powers of two from 1, then the limit",
    )
    max_prefills_per_batch: int = option(
        "integer",
        "Prompts of which one prefill program computes a chunk each; weights are then read once "
        "for all of them. Which prompts share a program depends on num_batched_tokens_buckets: "
        "padding must not cost more than it saves. `native` kernels gain from 8; others compute "
        "the attention of each prompt as if it filled the program.",
        "1 to max_num_seqs",
        at_least(1),
        default=1,
        default_doc="8, or max_num_seqs if that is less, for a server with `native` kernels, "
        "8-bit ones or not; else 1",
    )
    decode_context_length_buckets: tuple[int, ...] | None = option(
        "list of integers or null",
        "Context lengths for which separate decode programs, and prefill programs over a cached "
        "prefix, exist; max_model_len is always added. Short contexts then read a shorter cache. "
        "Each one multiplies the number of programs. Layers with a sliding window never read more "
        "than the window.",
        "at least 2, strictly ascending, each below max_model_len; multiples of block_size waste "
        "nothing",
        attrs.validators.optional(ascending(2)),
        default=None,
        default_doc="null: max_model_len only",
    )
    kernels: str = option(
        "string",
        "Which set of operators computes the model. `native` is C++ for the host's CPU, compiled "
        "at the first use; in bf16 it is several times as fast as `torch_cpu`. `native_int8` is "
        "the same with linear weights rounded to 8 bits per output column: less exact, half the "
        "memory, faster decode steps of few requests. `nki` runs our NKI kernels, in a simulator "
        "while there is no device: exact about what a kernel does, and slow. Sets that packages "
        "bring are named like ours, and `torch_cpu+decode_attention:mine` takes one operator of "
        "another set.",
        "`torch_cpu`, `native`, `native_int8`, `nki`, or as `trnport kernels list` says",
        sets_of_kernels,
        default="torch_cpu",
        default_doc="`native` for a server in bfloat16, if there is a C++ compiler; else "
        "`torch_cpu`",
    )
    compiler: str = option(
        "string",
        "What turns the model into programs. `inductor` compiles them for the host's CPU, keeps "
        "them on disk and needs a C++ compiler. `neuronx` needs the Neuron SDK and has not yet run "
        "on hardware.",
        "`eager`, `inductor`, `neuronx`",
        one_of("eager", "inductor", "neuronx"),
        default="eager",
        default_doc="`inductor` for a server in bfloat16 with `native` kernels; else `eager`",
    )
    warmup: str = option(
        "string",
        "When programs are compiled. `eager`: all of them before the first request. `lazy`: each "
        "one at its first use, so the server starts at once and single requests wait for a "
        "compilation; a failing one shows only then. Either way no program outside the buckets "
        "ever appears.",
        "`eager`, `lazy`",
        one_of("eager", "lazy"),
        default="eager",
    )
    kv_segment_size_buckets: tuple[int, ...] | None = option(
        "list of integers or null",
        "Lengths of a prompt's chunk when it follows cached tokens. Chunks of any length can, so "
        "this only repeats num_batched_tokens_buckets, as published configurations do.",
        "equal to num_batched_tokens_buckets, which it also sets when that is not given; each a "
        "multiple of block_size",
        attrs.validators.optional(ascending(SMALLEST_PREFILL_BUCKET)),
        default=None,
        default_doc="null: num_batched_tokens_buckets",
    )
    schedule_policy: str = option(
        "string",
        "Who goes first when prompts and generations wait for a step. `mixed`: all generations, "
        "then prompts while max_num_batched_tokens lasts. `prefill_first`: prompts alone while "
        "one can advance. `decode_first`: all generations, and one chunk of one prompt of at most "
        "the smallest of num_batched_tokens_buckets.",
        "`mixed`, `prefill_first`, `decode_first`",
        one_of(*SCHEDULE_POLICIES),
        default="mixed",
    )
    enable_prompt_logprobs: bool = option(
        "boolean",
        "Whether requests may ask for the log-probabilities of their prompt (`prompt_logprobs`, or "
        "`echo` with `logprobs`). Costs one small program, and the prefill programs return their "
        "hidden states.",
        "true or false",
        boolean,
        default=True,
    )
    on_device_sampling_config: OnDeviceSamplingConfig | None = option(  # noqa: RUF009  # a field
        "dictionary or null",
        "Sample inside the program: `all_greedy` compiles programs that only take the largest "
        "logit; `temperature`, `top_k` and `top_p` are the defaults of requests that name none. "
        "Parameters that programs do not know are sampled on the host from returned logits; "
        "`--max-logprobs 0` returns none, which saves their gathering, and refuses such requests.",
        "keys `all_greedy`, `temperature` (0 to 2), `top_k` (any, 0 and -1 keep all), `top_p`",
        attrs.validators.optional(attrs.validators.instance_of(OnDeviceSamplingConfig)),
        default=None,
        default_doc="null: sample on the host",
        converter=to_on_device_sampling,
    )
    enable_structured_outputs: bool = option(
        "boolean",
        "Programs that sample take a mask of allowed tokens, so that grammars can constrain "
        "them. Sampling on the host needs no such key.",
        "true or false",
        boolean,
        default=False,
    )
    quantization: None = planned("string or null", "Weight format, such as `mxfp4`.", None)
    fp8_packed_kv: bool = planned("boolean", "Packed layout of an FP8 key cache.", False)
    ep_degree: int | None = planned("integer or null", "Expert-parallel degree.", None, 1)
    attention_dp_size: int = planned(
        "integer", "Shard decode attention over this many data-parallel replicas.", 1
    )
    embedding_dp_size: int = planned("integer", "The same for the embedding.", 1)
    lm_head_dp_size: int = planned("integer", "The same for the LM head.", 1)
    mlp_dp_size: int = planned("integer", "The same for the MLP.", 1)
    apply_prefill_dcp: bool = planned(
        "boolean", "Shard a prompt over decode-context-parallel groups.", False
    )
    tensor_capture: None = planned("dictionary or null", "Record intermediate tensors.", None)
    tensor_replacement: None = planned("dictionary or null", "Inject intermediate tensors.", None)

    @classmethod
    def from_dict(
        cls,
        values: Mapping[str, Any],
        *,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        tp: int = 1,
        block_size: int | None = None,
    ) -> Self:
        """Validate a user's dictionary and fill in the defaults.

        Args:
            values: Keys of :class:`NeuronConfig`; null stands for the default.
            max_model_len: Most tokens of one request.
            max_num_seqs: Most requests in one decode step.
            max_num_batched_tokens: Most prompt tokens in one step.
            tp: Tensor-parallel degree. Buckets need not be multiples of it: the input builder
                pads the tensors of a bucket up to one.
            block_size: Positions per KV block, where it is known.

        Raises:
            ConfigError: A key is unknown, or a value is out of range, not implemented or in
                conflict with a limit.
        """
        _check_limits(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            tensor_parallel_size=tp,
        )
        check_known(values, tuple(field.name for field in attrs.fields(cls)))
        given = {key: value for key, value in values.items() if value is not None}
        max_tokens = min(max_num_batched_tokens, max_model_len * _count_of_prefills(given))
        given.setdefault(
            "num_batched_tokens_buckets",
            default_buckets(min(SMALLEST_DEFAULT_TOKENS_BUCKET, max_model_len), max_tokens),
        )
        given.setdefault("num_seqs_buckets", default_buckets(1, max_num_seqs))
        config = cls(**given)
        segments = config.kv_segment_size_buckets
        if segments is not None and values.get("num_batched_tokens_buckets") is None:
            config = attrs.evolve(config, num_batched_tokens_buckets=segments)
        config.check_against(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        config.check_segments(block_size)
        return config

    def check_segments(self, block_size: int | None) -> None:
        """Check ``kv_segment_size_buckets``, which promises what the other buckets have to keep.

        Raises:
            ConfigError: It is not the list of prefill buckets, or not in whole blocks.
        """
        segments = self.kv_segment_size_buckets
        if segments is None:
            return
        if segments != self.num_batched_tokens_buckets:
            fail(
                "kv_segment_size_buckets",
                list(segments),
                f"must equal num_batched_tokens_buckets={list(self.num_batched_tokens_buckets)}, "
                "or be left out",
            )
        if block_size and any(size % block_size for size in segments):
            fail(
                "kv_segment_size_buckets",
                list(segments),
                f"each must be a multiple of block_size={block_size}; change one of the two, or "
                "leave the key out, since chunks may end inside a block",
            )

    def check_against(
        self, *, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        """Check the buckets against the engine's limits.

        Raises:
            ConfigError: Some length, batch or chunk within the limits would find no bucket, or
                a bucket can never be used.
        """
        least = min(max_num_batched_tokens, max_model_len)
        most = min(max_num_batched_tokens, max_model_len * self.max_prefills_per_batch)
        if least == most:
            meaning = "min(max_num_batched_tokens, max_model_len)"
            _check_last(
                "num_batched_tokens_buckets", self.num_batched_tokens_buckets, least, meaning
            )
        elif not least <= self.num_batched_tokens_buckets[-1] <= most:
            fail(
                "num_batched_tokens_buckets",
                list(self.num_batched_tokens_buckets),
                f"the last bucket must be at least {least}, the longest chunk of a prompt, and at "
                f"most {most}, what max_prefills_per_batch={self.max_prefills_per_batch} prompts "
                "can have in one step",
            )
        if self.max_prefills_per_batch > max_num_seqs:
            fail(
                "max_prefills_per_batch",
                self.max_prefills_per_batch,
                f"must not exceed max_num_seqs={max_num_seqs}",
            )
        _check_last("num_seqs_buckets", self.num_seqs_buckets, max_num_seqs, "max_num_seqs")
        contexts = self.decode_context_length_buckets
        if contexts is not None and contexts[-1] >= max_model_len:
            fail(
                "decode_context_length_buckets",
                list(contexts),
                f"every bucket must be below max_model_len={max_model_len}, which is added "
                "by itself",
            )

    def describe(self) -> str:
        """One line for logs: every implemented setting, and nothing that has no effect."""
        return ", ".join(
            f"{field.name}={_plain(getattr(self, field.name))}"
            for field in attrs.fields(type(self))
            if field.metadata["implemented"]
        )


def default_buckets(smallest: int, limit: int) -> tuple[int, ...]:
    """``smallest``, and twice the last one while below ``limit``, then ``limit`` itself.

    Args:
        smallest: At least 1.
        limit: At least 1.
    """
    buckets = []
    size = smallest
    while size < limit:
        buckets.append(size)
        size *= 2
    return (*buckets, limit)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _count_of_prefills(given: Mapping[str, Any]) -> int:
    """``max_prefills_per_batch`` as given; 1 where it is no number and will be refused."""
    count = given.get("max_prefills_per_batch", 1)
    return count if type(count) is int and count > 0 else 1


def _check_limits(**limits: int) -> None:
    for name, value in limits.items():
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name}={value!r} must be a positive integer")
    for name in ("max_model_len", "max_num_batched_tokens"):
        if limits[name] < SMALLEST_PREFILL_BUCKET:
            raise ConfigError(
                f"{name}={limits[name]} leaves no room for a prompt and an answer; "
                f"it must be at least {SMALLEST_PREFILL_BUCKET}"
            )


def _check_last(name: str, buckets: Sequence[int], limit: int, meaning: str) -> None:
    if buckets[-1] != limit:
        fail(name, list(buckets), f"the last bucket must equal {meaning}, which is {limit}")
