# SPDX-License-Identifier: Apache-2.0
"""on_device_sampling_config and enable_structured_outputs: what is read, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trnport.core.config import NeuronConfig
from trnport.core.errors import ConfigError
from trnport.core.sampling_config import OnDeviceSamplingConfig


def config(values: dict[str, Any]) -> NeuronConfig:
    return NeuronConfig.from_dict(
        values, max_model_len=64, max_num_seqs=2, max_num_batched_tokens=64
    )


def test_the_host_samples_unless_asked() -> None:
    assert config({}).on_device_sampling_config is None
    assert config({"on_device_sampling_config": None}).on_device_sampling_config is None
    assert config({}).enable_structured_outputs is False


@pytest.mark.parametrize(
    ("given", "expected", "defaults"),
    [
        ({}, OnDeviceSamplingConfig(), {}),
        ({"all_greedy": True}, OnDeviceSamplingConfig(all_greedy=True), {"temperature": 0}),
        ({"all_greedy": "True"}, OnDeviceSamplingConfig(all_greedy=True), {"temperature": 0}),
        ({"all_greedy": "false", "temperature": "0"}, OnDeviceSamplingConfig(temperature=0.0),
         {"temperature": 0}),
        ({"temperature": "0.7", "top_k": "-1", "top_p": 1},
         OnDeviceSamplingConfig(temperature=0.7, top_k=-1, top_p=1),
         {"temperature": 0.7, "top_k": -1, "top_p": 1}),
        ({"top_k": 100_000, "top_p": None}, OnDeviceSamplingConfig(top_k=100_000),
         {"top_k": 100_000}),
    ],
)  # fmt: skip
def test_reads(given: dict[str, Any], expected: object, defaults: dict[str, float]) -> None:
    read = config({"on_device_sampling_config": given}).on_device_sampling_config
    assert read == expected
    assert read.defaults == defaults


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "on_device_sampling_config=True: must be a dictionary or null"),
        ([], "must be a dictionary"),
        ({"topk": 1}, "unknown key 'topk' in neuron_config.on_device.*did you mean 'top_k'"),
        ({"zzz": 1}, "unknown key 'zzz'.*known keys are.*all_greedy"),
        ({"all_greedy": 1}, "all_greedy=1: must be true or false"),
        ({"all_greedy": "yes"}, "all_greedy='yes': must be true or false"),
        ({"temperature": -0.1}, "temperature=-0.1: must be a number from 0 to 2"),
        ({"temperature": "nan"}, "temperature=nan"),
        ({"temperature": "warm"}, "temperature='warm'"),
        ({"temperature": True}, "temperature=True"),
        ({"top_k": 1.5}, "top_k=1.5: must be an integer"),
        ({"top_k": -2}, "top_k=-2"),
        ({"top_p": 0}, "top_p=0: must be a number above 0"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"all_greedy": True, "temperature": 0.5}, "temperature=0.5: contradicts all_greedy"),
    ],
)
def test_refuses(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config({"on_device_sampling_config": value})


@pytest.mark.parametrize("value", [1, 0, "true", []])
def test_structured_outputs_are_on_or_off(value: object) -> None:
    with pytest.raises(ConfigError, match=r"enable_structured_outputs=.*true or false"):
        config({"enable_structured_outputs": value})
