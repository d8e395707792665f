# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of single instructions."""

import pytest

from trnport.adapters.nki.simulator import machine


@pytest.fixture
def trn2():
    """A core of the first target, current in this thread."""
    with machine.session("trn2") as core:
        yield core


@pytest.fixture
def trn3():
    """A core of the second target, current in this thread."""
    with machine.session("trn3") as core:
        yield core
