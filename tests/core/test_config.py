# SPDX-License-Identifier: Apache-2.0
"""NeuronConfig: what is accepted, what is refused, and the sentence that says so."""

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnport.core.config import NeuronConfig, default_buckets
from trnport.core.errors import ConfigError


def config(
    values: dict[str, Any] | None = None,
    *,
    max_model_len: int = 1000,
    max_num_seqs: int = 6,
    max_num_batched_tokens: int = 512,
    tp: int = 1,
    block_size: int | None = None,
) -> NeuronConfig:
    return NeuronConfig.from_dict(
        values or {},
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        tp=tp,
        block_size=block_size,
    )


def test_defaults() -> None:
    result = config()
    assert result.num_batched_tokens_buckets == (128, 256, 512)
    assert result.num_seqs_buckets == (1, 2, 4, 6)
    assert result.decode_context_length_buckets is None
    assert (result.kernels, result.compiler) == ("torch_cpu", "eager")


@pytest.mark.parametrize(
    ("max_model_len", "max_num_batched_tokens", "expected"),
    [
        (8192, 5000, (128, 256, 512, 1024, 2048, 4096, 5000)),
        (5000, 8192, (128, 256, 512, 1024, 2048, 4096, 5000)),
        (4096, 256, (128, 256)),
        (4096, 128, (128,)),
        (4096, 129, (128, 129)),
        (4096, 100, (100,)),
        (317, 317, (128, 256, 317)),
        (2, 2, (2,)),
    ],
)
def test_default_token_buckets_end_at_the_limit(
    max_model_len: int, max_num_batched_tokens: int, expected: tuple[int, ...]
) -> None:
    result = config(max_model_len=max_model_len, max_num_batched_tokens=max_num_batched_tokens)
    assert result.num_batched_tokens_buckets == expected


@pytest.mark.parametrize(
    ("max_num_seqs", "expected"), [(1, (1,)), (3, (1, 2, 3)), (7, (1, 2, 4, 7)), (8, (1, 2, 4, 8))]
)
def test_default_sequence_buckets_end_at_the_limit(
    max_num_seqs: int, expected: tuple[int, ...]
) -> None:
    assert config(max_num_seqs=max_num_seqs).num_seqs_buckets == expected


@settings(deadline=None)
@given(st.integers(0, 8), st.integers(1, 10**6))
def test_default_buckets_are_ascending_powers_of_two_up_to_the_limit(
    exponent: int, limit: int
) -> None:
    buckets = default_buckets(2**exponent, limit)
    assert buckets[-1] == limit
    assert list(buckets) == sorted(set(buckets))
    assert all(bucket == 2 ** (exponent + i) for i, bucket in enumerate(buckets[:-1]))


def test_explicit_values() -> None:
    values = {
        "num_batched_tokens_buckets": [2, 3, 512],
        "num_seqs_buckets": [6],
        "decode_context_length_buckets": [2, 100, 999],
        "kernels": "torch_cpu",
        "compiler": "eager",
        "schedule_policy": "decode_first",
    }
    result = config(values)
    assert result.num_batched_tokens_buckets == (2, 3, 512)
    assert result.num_seqs_buckets == (6,)
    assert result.decode_context_length_buckets == (2, 100, 999)
    assert result.schedule_policy == "decode_first"


@pytest.mark.parametrize("buckets", [[512], [128, 256, 512]])
def test_segments_repeat_the_buckets_of_a_published_configuration(buckets: list[int]) -> None:
    plain = {"num_batched_tokens_buckets": buckets}
    segments = {"kv_segment_size_buckets": buckets}
    for values in (plain | segments, segments):
        result = config(values, block_size=32)
        assert result == attrs.evolve(config(plain), kv_segment_size_buckets=tuple(buckets))


def test_segments_are_whole_blocks() -> None:
    values = {"kv_segment_size_buckets": [96, 512]}
    assert config(values, block_size=32)
    with pytest.raises(ConfigError, match=r"\[96, 512\]: each must be a multiple of block_size=64"):
        config(values, block_size=64)
    assert config({"num_batched_tokens_buckets": [96, 512]}, block_size=64)


def test_null_means_default() -> None:
    assert config(dict.fromkeys(attrs.fields_dict(NeuronConfig))) == config()


@pytest.mark.parametrize("tp", [1, 2, 3, 8])
def test_buckets_need_not_be_multiples_of_tp(tp: int) -> None:
    assert config({"num_batched_tokens_buckets": [5, 512]}, tp=tp) == config(
        {"num_batched_tokens_buckets": [5, 512]}
    )


NEUTRAL: dict[str, tuple[object, ...]] = {
    "quantization": (None,),
    "fp8_packed_kv": (False,),
    "ep_degree": (None, 1),
    "attention_dp_size": (1,),
    "embedding_dp_size": (1,),
    "lm_head_dp_size": (1,),
    "mlp_dp_size": (1,),
    "apply_prefill_dcp": (False,),
    "tensor_capture": (None,),
    "tensor_replacement": (None,),
}
OTHER_VALUES: tuple[object, ...] = (True, False, 0, 1, 2, "mxfp4", [512], {"a": 1}, {}, [], "")


@pytest.mark.parametrize("key", NEUTRAL)
def test_a_planned_setting_takes_its_neutral_value_only(key: str) -> None:
    for value in NEUTRAL[key]:
        assert config({key: value}) == attrs.evolve(config(), **{key: value})
    for value in OTHER_VALUES:
        if any(type(value) is type(n) and value == n for n in NEUTRAL[key]):
            continue
        with pytest.raises(ConfigError, match=f"{key}=.*not implemented in this release"):
            config({key: value})


def test_every_field_is_documented() -> None:
    for field in attrs.fields(NeuronConfig):
        assert field.metadata["implemented"] == (field.name not in NEUTRAL)
        assert field.metadata["doc"].endswith(".")
        assert field.metadata["type"]
        assert field.metadata["valid"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_seqs_bucket": [6]}, "'num_seqs_bucket'.*did you mean 'num_seqs_buckets'"),
        ({"kernel": "torch_cpu"}, "did you mean 'kernels'"),
        ({"zzz": 1}, "unknown key 'zzz'.*known keys are num_batched_tokens_buckets, "),
        ({1: 1}, "unknown key '1'"),
        ({"activities": []}, r"belongs to additional_config\['neuron_profiler'\]"),
        (
            {"num_vision_tokens_buckets": [1]},
            r"belongs to additional_config\['vision_neuron_config'\]",
        ),
        ({"vision_neuron_config": {}}, "belongs next to neuron_config"),
        ({"mm_language_model_only": True}, "belongs next to neuron_config"),
        ({"num_seqs_buckets": 6}, "num_seqs_buckets=6: must be a non-empty list of integers"),
        ({"num_seqs_buckets": []}, "must be a non-empty list"),
        ({"num_seqs_buckets": "16"}, "must be a non-empty list"),
        ({"num_seqs_buckets": [1.0, 6]}, "must be a non-empty list of integers"),
        ({"num_seqs_buckets": [True, 6]}, "must be a non-empty list of integers"),
        ({"num_seqs_buckets": [0, 6]}, "must be at least 1"),
        ({"num_seqs_buckets": [-1, 6]}, "must be at least 1"),
        ({"num_seqs_buckets": [2, 1, 6]}, "must be strictly ascending"),
        ({"num_seqs_buckets": [1, 6, 6]}, "must be strictly ascending"),
        ({"num_seqs_buckets": [1, 4]}, "last bucket must equal max_num_seqs, which is 6"),
        ({"num_seqs_buckets": [1, 8]}, "last bucket must equal max_num_seqs, which is 6"),
        ({"num_batched_tokens_buckets": [1, 512]}, "must be at least 2"),
        ({"num_batched_tokens_buckets": [256, 128, 512]}, "must be strictly ascending"),
        ({"num_batched_tokens_buckets": [128]}, "last bucket must equal min.*which is 512"),
        ({"num_batched_tokens_buckets": [1000]}, "last bucket must equal min.*which is 512"),
        ({"decode_context_length_buckets": []}, "must be a non-empty list"),
        ({"decode_context_length_buckets": [1, 128]}, "must be at least 2"),
        ({"decode_context_length_buckets": [256, 128]}, "must be strictly ascending"),
        ({"decode_context_length_buckets": [128, 1000]}, "below max_model_len=1000"),
        ({"decode_context_length_buckets": [1024]}, "below max_model_len=1000"),
        ({"kernels": ""}, "kernels='': must be the name of a set of kernels"),
        ({"kernels": ["torch_cpu"]}, "must be the name of a set of kernels"),
        ({"compiler": "xla"}, "compiler='xla': must be one of 'eager', 'inductor', 'neuronx'"),
        ({"warmup": "never"}, "warmup='never': must be one of 'eager', 'lazy'"),
        (
            {"schedule_policy": "fcfs"},
            "'fcfs': must be one of 'mixed', 'prefill_first', 'decode_first'",
        ),
        ({"schedule_policy": True}, "schedule_policy=True: must be one of"),
        ({"kv_segment_size_buckets": []}, "must be a non-empty list"),
        ({"kv_segment_size_buckets": 512}, "kv_segment_size_buckets=512: must be a non-empty list"),
        ({"kv_segment_size_buckets": [512, 256]}, "must be strictly ascending"),
        ({"kv_segment_size_buckets": [256]}, "last bucket must equal min.*which is 512"),
        (
            {"kv_segment_size_buckets": [512], "num_batched_tokens_buckets": [256, 512]},
            r"\[512\]: must equal num_batched_tokens_buckets=\[256, 512\], or be left out",
        ),
    ],
)
def test_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(values)


@pytest.mark.parametrize("values", [None, [], "num_seqs_buckets", 3])
def test_refuses_what_is_no_dictionary(values: Any) -> None:
    with pytest.raises(ConfigError, match="must be a dictionary"):
        NeuronConfig.from_dict(
            values, max_model_len=100, max_num_seqs=1, max_num_batched_tokens=100
        )


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_model_len": 1}, "max_model_len=1 leaves no room"),
        ({"max_num_batched_tokens": 1}, "max_num_batched_tokens=1 leaves no room"),
        ({"max_model_len": 0}, "max_model_len=0 must be a positive integer"),
        ({"max_num_seqs": 0}, "max_num_seqs=0 must be"),
        ({"max_num_seqs": -3}, "max_num_seqs=-3 must be"),
        ({"tp": 0}, "tensor_parallel_size=0 must be"),
    ],
)
def test_refuses_limits(limits: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**limits)


def test_the_token_limit_is_the_smaller_of_the_two() -> None:
    values = {"num_batched_tokens_buckets": [300]}
    assert config(values, max_model_len=300, max_num_batched_tokens=512)
    assert config(values, max_model_len=1000, max_num_batched_tokens=300)


def test_describes_itself_in_one_line() -> None:
    assert config({"decode_context_length_buckets": [256]}).describe() == (
        "num_batched_tokens_buckets=[128, 256, 512], num_seqs_buckets=[1, 2, 4, 6], "
        "max_prefills_per_batch=1, decode_context_length_buckets=[256], kernels=torch_cpu, "
        "compiler=eager, warmup=eager, "
        "kv_segment_size_buckets=None, schedule_policy=mixed, "
        "enable_prompt_logprobs=True, "
        "on_device_sampling_config=None, enable_structured_outputs=False"
    )


def test_is_immutable_and_hashable() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        config().kernels = "x"  # type: ignore[misc]
    assert hash(config()) == hash(config())


def test_a_caller_may_keep_its_dictionary() -> None:
    values = {"num_seqs_buckets": [1, 6]}
    result = config(values)
    values["num_seqs_buckets"].append(7)
    assert values.keys() == {"num_seqs_buckets"}
    assert result.num_seqs_buckets == (1, 6)
