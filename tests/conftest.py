# SPDX-License-Identifier: Apache-2.0
"""Settings shared by all tests."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import Phase, settings

from tests import compiling
from tests.compiling import shared_programs  # noqa: F401  # a fixture

# The default finds the same examples on every run, so that a red build stays red. A person who
# hunts for bugs takes HYPOTHESIS_PROFILE=explore. No deadlines: on a busy machine they say nothing.
settings.register_profile("default", max_examples=30, deadline=None, derandomize=True)
settings.register_profile("explore", max_examples=500, deadline=None, print_blob=True)
# tests/mutation only asks whether a test fails, not for the smallest example of it.
settings.register_profile(
    "mutation",
    settings.get_profile("default"),
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Tensors here are tiny, and several test processes share the machine.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--compiler", choices=["eager", "inductor"], default="eager", help=compiling.__doc__
    )


def pytest_configure(config: pytest.Config) -> None:
    compiler = config.getoption("--compiler")
    if compiler != "eager":
        compiling.choose(compiler)
