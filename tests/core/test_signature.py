# SPDX-License-Identifier: Apache-2.0
"""Signatures: equal exactly where one program serves both calls."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from trnport.core.signature import signature_of


@attrs.frozen(eq=False)
class Meta:
    table: torch.Tensor
    size: int


def call(rows: int = 2, size: int = 4, dtype: torch.dtype = torch.int32, **more: Any) -> str:
    shared = Meta(torch.zeros(rows, 3, dtype=dtype), size)
    return signature_of((torch.ones(rows),), {"layers": {"a": shared, "b": shared}, **more})


def test_contents_and_identity_do_not_matter() -> None:
    one, two = Meta(torch.zeros(2), 4), Meta(torch.ones(2), 4)
    assert call() == call()
    assert signature_of(({"a": one, "b": one},)) == signature_of(({"a": one, "b": two},))


def test_the_order_of_keywords_does_not_matter() -> None:
    assert signature_of((), {"a": 1, "b": 2}) == signature_of((), {"b": 2, "a": 1})


@pytest.mark.parametrize(
    "other",
    [{"rows": 3}, {"size": 5}, {"dtype": torch.int64}, {"mask": None}, {"mask": torch.ones(1)}],
)
def test_whatever_changes_a_program_changes_the_signature(other: dict[str, Any]) -> None:
    assert call(**other) != call()


def test_none_a_tensor_and_nothing_are_three_things() -> None:
    signatures = {signature_of((), kw) for kw in ({}, {"x": None}, {"x": torch.ones(())})}
    assert len(signatures) == 3


def test_rows_of_one_shape_differ_from_one_row_of_another() -> None:
    assert signature_of((torch.ones(2, 3),)) != signature_of((torch.ones(3, 2),))
    assert signature_of(([torch.ones(1)] * 2,)) != signature_of((torch.ones(2),))
