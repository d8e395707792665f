# SPDX-License-Identifier: Apache-2.0
"""What a server chooses where its user leaves a setting open."""

from __future__ import annotations

import pytest

from trnport import serving_defaults
from trnport.core.config import NeuronConfig
from trnport.serving_defaults import with_defaults

FAST = {"kernels": "native", "compiler": "inductor", "max_prefills_per_batch": 8}


@pytest.fixture(params=["/usr/bin/g++", None], ids=["a compiler", "no compiler"])
def cxx(request, monkeypatch) -> str | None:
    monkeypatch.setattr(serving_defaults, "cxx", lambda: request.param)
    return request.param


@pytest.mark.parametrize("is_bfloat16", [True, False])
def test_bfloat16_and_a_compiler_make_it_compile(cxx: str | None, is_bfloat16: bool) -> None:
    fast = is_bfloat16 and cxx is not None
    assert with_defaults({}, is_bfloat16=is_bfloat16, max_num_seqs=64) == (FAST if fast else {})


def test_what_the_user_says_stands(cxx: str | None) -> None:
    own = {"kernels": "torch_cpu", "compiler": "eager", "warmup": None}
    chosen = with_defaults(own, is_bfloat16=True, max_num_seqs=64)
    assert chosen == {"kernels": "torch_cpu", "compiler": "eager"}
    small = with_defaults({"kernels": "native_int8"}, is_bfloat16=True, max_num_seqs=64)
    assert small == ({**FAST} if cxx else {"max_prefills_per_batch": 8}) | {
        "kernels": "native_int8"
    }
    others = {"kernels": "nki"}  # which no compiler here can read
    assert with_defaults(others, is_bfloat16=True, max_num_seqs=64) == others


def test_native_kernels_take_several_prompts_whoever_chose_them(cxx: str | None) -> None:
    chosen = with_defaults({"kernels": "native"}, is_bfloat16=False, max_num_seqs=3)
    assert chosen == {"kernels": "native", "max_prefills_per_batch": 3}
    one = {"kernels": "native", "max_prefills_per_batch": 1}
    assert with_defaults(one, is_bfloat16=False, max_num_seqs=3) == one


@pytest.mark.parametrize("last", [60, 100, 480])
def test_a_list_of_buckets_that_was_right_for_one_prompt_stays_right(last: int) -> None:
    """Several prompts in a program may fill more than one can, and need not."""
    limits = {"max_model_len": 60, "max_num_seqs": 8, "max_num_batched_tokens": 900}
    values = {"num_batched_tokens_buckets": [last], "max_prefills_per_batch": 8}
    assert NeuronConfig.from_dict(values, **limits).num_batched_tokens_buckets == (last,)


def test_short_models_keep_their_small_bucket() -> None:
    limits = {"max_model_len": 60, "max_num_seqs": 8, "max_num_batched_tokens": 400}
    config = NeuronConfig.from_dict({"max_prefills_per_batch": 8}, **limits)
    assert config.num_batched_tokens_buckets == (60, 120, 240, 400)
