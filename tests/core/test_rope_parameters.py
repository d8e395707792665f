# SPDX-License-Identifier: Apache-2.0
"""RoPE settings: what is read from each spelling, and what is refused."""

from typing import Any

import pytest

from trnport.core.errors import ConfigError, UnsupportedConfigError
from trnport.core.nn.rope import RopeParameters

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1],
    "long_factor": [2.0, 2.2],
    "original_max_position_embeddings": 2048,
}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "rope_theta is in neither"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_theta is in neither"),
        ({"rope_theta": None}, "rope_theta is in neither"),
        ({"rope_theta": "1e4"}, "rope_theta='1e4' must be a positive number"),
        ({"rope_theta": True}, "rope_theta=True"),
        ({"rope_theta": float("nan")}, "rope_theta=nan"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 1.5}, "partial_rotary_factor=1.5"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0}, "partial_rotary_factor=0"),
        ({"rope_theta": 1e4, "rope_scaling": "yarn"}, "rope_scaling must be a dictionary"),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "magic"}}, "'magic'.*default, linear, dyn"),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear"}}, "needs factor"),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": None}},
            "needs a number for 'factor'",
        ),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 0}}, "factor=0"),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 9}},
            "does not know alpha",
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "mrope_section": [1]}},
            "does not know mrope_section",
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 2.0}},
            "needs original_max_position_embeddings",
        ),
        (
            {
                "rope_theta": 1e4,
                "max_position_embeddings": 64,
                "rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 2},
            },
            "beta_fast=1",
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "needs original_max|needs high_freq_factor, low_freq_factor",
        ),
        (
            {
                "rope_theta": 1e4,
                "rope_scaling": LLAMA3 | {"high_freq_factor": 1.0},
            },
            "high_freq_factor=1.0 must be above low_freq_factor=1.0",
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": LONGROPE | {"short_factor": 2}},
            "short_factor must be a list",
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": LONGROPE | {"factor": -1}},
            "factor=-1",
        ),
        # two places that contradict each other
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "rope_theta=10000.0 at its"),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "rope_type": "yarn"}},
            "type='linear' and rope_type='yarn'",
        ),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
            },
            "contradict each other in factor, rope_theta",
        ),
        (
            {
                "partial_rotary_factor": 0.5,
                "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
            },
            "partial_rotary_factor=0.5 at its top level",
        ),
        (
            {
                "rope_theta": 1e4,
                "original_max_position_embeddings": 1024,
                "rope_scaling": LONGROPE,
            },
            "original_max_position_embeddings=1024 at its top level and 2048",
        ),
        # nested
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "rope_theta": 1e4}},
            r"mixes .*\(rope_theta\)",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            "no dictionary for layer type None; it has full_attention",
        ),
        (
            {"rope_theta": 5.0, "rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            "no dictionary for layer type None",
        ),
    ],
)
def test_refuses(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RopeParameters.from_hf(config)


def test_an_unknown_type_or_key_is_unsupported() -> None:
    for scaling in ({"type": "magic"}, {"type": "linear", "factor": 2.0, "alpha": 1}):
        with pytest.raises(UnsupportedConfigError):
            RopeParameters.from_hf({"rope_theta": 1e4, "rope_scaling": scaling})


def test_both_spellings_may_agree() -> None:
    config = {
        "rope_theta": 10000,
        "rope_scaling": {"type": "linear", "factor": 2},
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    }
    expected = RopeParameters(rope_theta=10000.0, rope_type="linear", factor=2.0)
    assert RopeParameters.from_hf(config) == expected


def test_layer_types_inherit_and_override_the_surrounding_value() -> None:
    nested = {"full_attention": {}, "sliding_attention": {"rope_theta": 10000.0}}
    config = {"rope_theta": 1e6, "rope_parameters": nested}
    assert RopeParameters.from_hf(config, "full_attention").rope_theta == 1e6
    assert RopeParameters.from_hf(config, "sliding_attention").rope_theta == 1e4
    nested["full_attention"]["rope_theta"] = 5e5  # now nobody uses 1e6
    with pytest.raises(ConfigError, match=r"rope_theta=1000000\.0 at its top level"):
        RopeParameters.from_hf(config, "full_attention")


def test_the_default_base_is_used_only_when_there_is_none() -> None:
    assert RopeParameters.from_hf({}, default_theta=10000.0).rope_theta == 1e4
    assert RopeParameters.from_hf({"rope_theta": 5e5}, default_theta=1e4).rope_theta == 5e5
