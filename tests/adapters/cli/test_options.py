# SPDX-License-Identifier: Apache-2.0
"""docs/options.md says what NeuronConfig does."""

from pathlib import Path

import attrs

from trnport.adapters.cli.options import render_options
from trnport.core.config import NeuronConfig

PAGE = Path(__file__).parents[3] / "docs" / "options.md"


def test_the_page_is_up_to_date() -> None:
    expected = render_options()
    assert PAGE.read_text(encoding="utf-8") == expected, (
        "run `python -m trnport.adapters.cli.options > docs/options.md`"
    )


def test_every_field_has_one_row_with_all_its_cells() -> None:
    rows = [line for line in render_options().splitlines() if line.startswith("| `")]
    names = [field.name for field in attrs.fields(NeuronConfig)]
    assert sorted(row.split("`")[1] for row in rows) == sorted(names)
    assert all(cell.strip() for row in rows for cell in row.strip("|").split("|"))
