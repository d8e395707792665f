# SPDX-License-Identifier: Apache-2.0
"""Random numbers: ranges, seeds and rules. Sequences are nobody's promise."""

import pytest

from tests.adapters.nki.tiles import fresh, plain, tile
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.rules import RuleViolationError


@pytest.mark.parametrize(("dtype", "bits"), [("uint8", 8), ("int16", 16), ("uint32", 32)])
def test_rng_fills_every_bit(trn2, dtype, bits):
    t = fresh((16, 64), dtype)
    nisa.rng(t)
    patterns = {int(x) % 2**bits for x in plain(t).reshape(-1)}
    assert len(patterns) > 200
    for bit in range(bits):
        assert {p >> bit & 1 for p in patterns} == {0, 1}


def test_one_seed_gives_one_sequence(trn2):
    first, second, other = (fresh((4, 8), "uint32") for _ in range(3))
    for t, seed in ((first, 7), (second, 7), (other, 8)):
        nisa.set_rng_seed(tile([[seed]], "uint32"))
        nisa.rng(t)
    assert (plain(first) == plain(second)).all()
    assert (plain(first) != plain(other)).any()


@pytest.mark.parametrize("columns", [False, True])
def test_rand2_stays_between_its_bounds(trn3, columns):
    t = fresh((2, 500))
    low, high = [-1.0, 10.0], [1.0, 11.0]
    args = (tile([[x] for x in low]), tile([[x] for x in high])) if columns else (low[0], high[0])
    nisa.rand2(t, *args)
    for p in range(2):
        row, at = plain(t)[p].tolist(), p if columns else 0
        assert low[at] <= min(row) < max(row) <= high[at]
        assert abs(sum(row) / 500 - (low[at] + high[at]) / 2) < 0.2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_dropout_zeroes_by_probability(trn2, dtype):
    data, dst = tile([[5] * 400] * 3, dtype), fresh((3, 400), dtype)
    nisa.dropout(dst, data, tile([[0.0], [0.5], [1.0]]))
    rows = plain(dst)
    assert set(rows[0]) == {5}
    assert set(rows[2]) == {0}
    assert set(rows[1]) == {0, 5}
    assert 120 < list(rows[1]).count(0) < 280


CASES = [
    ("trn2", "NKI-DTYPE", lambda: nisa.rng(fresh((2, 2)))),
    (
        "trn2",
        "NKI-GPSIMD-PSUM",
        lambda: nisa.rng(fresh((2, 2), "int8", nl.psum), nisa.engine.gpsimd),
    ),
    ("trn2", "NKI-ENGINE", lambda: nisa.rng(fresh((2, 2), "int8"), nisa.engine.scalar)),
    ("trn2", "NKI-SHAPE", lambda: nisa.set_rng_seed(tile([[1, 2]], "uint32"))),
    ("trn2", "NKI-DTYPE", lambda: nisa.set_rng_seed(tile([[1]], "uint16"))),
    ("trn2", "NKI-TARGET", lambda: nisa.rand2(fresh((2, 2)), 0.0, 1.0)),
    ("trn3", "NKI-PARAMETER", lambda: nisa.rand2(fresh((2, 2)), 1.0, 1.0)),
    ("trn2", "NKI-DTYPE", lambda: nisa.dropout(fresh((1, 1)), tile([[1]], "int32"), 0.5)),
    (
        "trn2",
        "NKI-OPERAND-DTYPE",
        lambda: nisa.dropout(fresh((1, 1), "int32"), tile([[1]], "int32"), tile([[1]], "bfloat16")),
    ),
]


@pytest.mark.parametrize(
    ("target", "rule", "breaks"),
    CASES,
    ids=[f"{i}-{target}-{rule}" for i, (target, rule, _) in enumerate(CASES)],
)
def test_a_broken_rule_names_itself(target, rule, breaks):
    with machine.session(target), pytest.raises(RuleViolationError) as caught:
        breaks()
    assert caught.value.rule == rule
