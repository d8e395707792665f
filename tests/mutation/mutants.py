# SPDX-License-Identifier: Apache-2.0
"""All seeded bugs, and what is known about those that once survived.

The list was written before the tests were run against it, and nothing was taken off it since.
"""

from __future__ import annotations

from tests.mutation import kernels, reference, simulator

MUTANTS = (*kernels.MUTANTS, *simulator.MUTANTS, *reference.MUTANTS)

FIRST_SURVIVORS = {
    "pattern-dynamic-end": "test added",
    "marks-rows": "test added",
    "ledger-capacity": "test added",
    "scan-reverse": "operators added: both second ones commuted",
    "sampling-tiny-top-p": "test added",
    "dtypes-tie": "the list named the wrong test file",
    "torch-padding": "the list named the wrong test file",
}
"""Ids that no test killed on the first run of the list, and what was done about them."""

EQUIVALENT: dict[str, str] = {}
"""Id to the reason why no test can tell the mutant from the original."""
