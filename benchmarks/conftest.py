# SPDX-License-Identifier: Apache-2.0
"""Options of the benchmarks that run under pytest."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sets",
        nargs="+",
        default=["torch_cpu"],
        metavar="SET",
        help="sets of kernels, spelled as in neuron_config",
    )
    parser.addoption("--threads", type=int, default=min(2, os.cpu_count() or 1))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kernel_set" in metafunc.fixturenames:
        metafunc.parametrize("kernel_set", metafunc.config.getoption("--sets"))
