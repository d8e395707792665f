# SPDX-License-Identifier: Apache-2.0
"""One line per rule of the simulator's core: the shortest code that breaks it.

Rules of instruction families are broken in those families' tests; the last test here checks that
every rule of the table is broken somewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters.nki.support import breaks, counting, filled
from trnport.adapters.nki.simulator import RuleViolationError, check, machine
from trnport.adapters.nki.simulator import isa as _isa
from trnport.adapters.nki.simulator import language as _language
from trnport.adapters.nki.simulator.access import operand, read, write
from trnport.adapters.nki.simulator.rules import RULES, Rule, add

nl: Any = _language
nisa: Any = _isa


def _tile(*shape: int, dtype: str = "float32", buffer: Any = nl.sbuf) -> Any:
    return filled(np.ones(shape, np.float32), buffer, dtype)


def _hbm(*shape: int, dtype: str = "float32") -> Any:
    return _tile(*shape, dtype=dtype, buffer=nl.hbm)


def _psum(*shape: int, dtype: str = "float32") -> Any:
    return nl.ndarray(shape, dtype, nl.psum)


def _rows(*values: int, dtype: str = "int32") -> Any:
    return filled(np.array(values, np.int64)[:, None], dtype=dtype)


def _gathered(rows: int = 16, width: int = 8, dtype: str = "bfloat16", index: Any = None) -> Any:
    index = _rows(*range(16), dtype="uint32") if index is None else index
    return _hbm(64, width, dtype=dtype).ap([[width, rows], [1, width]], vector_offset=index)


def _transposed(src: Any, **modes: Any) -> None:
    order = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[src.ndim]
    dst = nl.ndarray([src.shape[axis] for axis in order], src.dtype)
    nisa.dma_transpose(dst, src, **modes)


def _copied(dst: Any, src: Any, **modes: Any) -> None:
    nisa.dma_copy(dst, src, **modes)


def _product(m: int, k: int, n: int, dtype: str = "bfloat16", **modes: Any) -> None:
    dst = _psum(m, n, dtype=modes.pop("dst", "float32"))
    other = modes.pop("other", dtype)
    nisa.nc_matmul(dst, _tile(k, m, dtype=dtype), _tile(k, n, dtype=other), **modes)


def _live(count: int, *shape: int, buffer: Any = nl.sbuf) -> Any:
    return [nl.ndarray(shape, nl.float32, buffer) for _ in range(count)]


_SKIP, _SWDGE, _HWDGE, _NONE = (
    {"oob_mode": nisa.oob_mode.skip},
    {"dge_mode": nisa.dge_mode.swdge},
    {"dge_mode": nisa.dge_mode.hwdge},
    {"dge_mode": nisa.dge_mode.none},
)
_DOUBLE = {"perf_mode": nisa.matmul_perf_mode.double_row}

# (rule, code that breaks it, the same code within the rule or None)
CASES: list[tuple[str, Callable[[], Any], Callable[[], Any] | None]] = [
    # memory
    ("NKI-RANK", lambda: nl.ndarray((4,), nl.float32), lambda: _hbm(4)),
    ("NKI-RANK", lambda: nl.ndarray((4, 0), nl.float32), None),
    (
        "NKI-PARTITIONS",
        lambda: nl.ndarray((129, 1), nl.int8),
        lambda: nl.ndarray((128, 1), nl.int8),
    ),
    ("NKI-SBUF-CAPACITY", lambda: _live(2, 1, 30_000), lambda: _live(1, 1, 53_246)),
    ("NKI-SBUF-CAPACITY", lambda: _live(1, 1, 53_247), None),
    (
        "NKI-SBUF-CAPACITY",
        lambda: nl.ndarray((1, 212_985), nl.int8),
        lambda: nl.ndarray((1, 212_984), nl.int8),
    ),
    ("NKI-PSUM-CAPACITY", lambda: _live(9, 128, 512, buffer=nl.psum), None),
    ("NKI-PSUM-CAPACITY", lambda: _live(1, 1, 4097, buffer=nl.psum), None),
    (
        "NKI-PSUM-BANK",
        lambda: nl.ndarray((4, 4), nl.float32, nl.psum, address=(0, 1024)),
        lambda: nl.ndarray((4, 4), nl.float32, nl.psum, address=(0, 4096)),
    ),
    (
        "NKI-ADDRESS",
        lambda: nl.ndarray((4, 4), nl.float32, address=(0, 212_984)),
        lambda: nl.ndarray((4, 4), nl.float32, address=(0, 212_968)),
    ),
    ("NKI-ADDRESS", lambda: nl.ndarray((64, 4), nl.float32, address=(96, 0)), None),
    ("NKI-ADDRESS", lambda: nl.ndarray((4, 4), nl.float32, nl.hbm, address=(0, 0)), None),
    ("NKI-ADDRESS", lambda: nl.ndarray((4, 4), nl.float32, address=16), None),
    (
        "NKI-START-PARTITION",
        lambda: nl.ndarray((4, 4), nl.float32, address=(16, 0)),
        lambda: nl.ndarray((4, 4), nl.float32, address=(96, 0)),
    ),
    (
        "NKI-START-PARTITION",
        lambda: check.require_tile("copy", "src", counting((128, 2))[32:96], nl.sbuf),
        lambda: check.require_tile("copy", "src", counting((128, 2))[64:128], nl.sbuf),
    ),
    (
        "NKI-VIEW-DIMS",
        lambda: check.require_tile("copy", "src", counting((2, 1, 2, 1, 2, 1)), nl.sbuf),
        lambda: check.require_tile("copy", "src", counting((2, 1, 2, 1, 2)), nl.sbuf),
    ),
    ("NKI-UNWRITTEN", lambda: read(nl.ndarray((2, 2), nl.int8)), None),
    ("NKI-PARAMETER", lambda: nl.ndarray((2, 2), nl.int8, "dram"), None),
    # views
    ("NKI-OOB", lambda: counting((4, 6))[:, 2:7], lambda: counting((4, 6))[:, 2:6]),
    ("NKI-OOB", lambda: counting((4, 6))[:, 3:3], None),
    ("NKI-OOB", lambda: counting((4, 6))[4], None),
    ("NKI-OOB", lambda: counting((4, 6)).slice(1, 0, 7), None),
    ("NKI-OOB", lambda: counting((4, 6)).select(1, 6), None),
    ("NKI-INDEX", lambda: counting((4, 6))[0.5], None),
    ("NKI-INDEX", lambda: counting((4, 6))[:, 0.0:2], None),
    ("NKI-INDEX", lambda: counting((4, 6))[0, 0, 0], None),
    ("NKI-PARTITION-STEP", lambda: counting((4, 6))[::2], lambda: counting((4, 6))[:, ::2]),
    ("NKI-VIEW-DIM", lambda: counting((4, 6)).squeeze_dim(2), None),
    ("NKI-VIEW-DIM", lambda: counting((4, 6)).permute((0, 0)), None),
    ("NKI-VIEW-DIM", lambda: counting((4, 6)).flatten_dims(1, 0), None),
    ("NKI-VIEW-DIM", lambda: counting((4, 6)).rearrange(("a",), ("a",)), None),
    ("NKI-VIEW-DIM", lambda: counting((4, 6)).rearrange(("a", "b"), ("a", "c")), None),
    ("NKI-VIEW-PARTITION", lambda: counting((4, 6)).permute((1, 0)), None),
    ("NKI-VIEW-PARTITION", lambda: counting((1, 6)).broadcast(0, 2), None),
    ("NKI-VIEW-PARTITION", lambda: counting((4, 6)).expand_dim(0), None),
    ("NKI-VIEW-PARTITION", lambda: counting((1, 2, 6)).squeeze_dim(0), None),
    ("NKI-VIEW-PARTITION", lambda: counting((4, 6)).reshape_dim(0, (2, 2)), None),
    ("NKI-VIEW-PARTITION", lambda: counting((4, 6)).reshape((2, 12)), None),
    ("NKI-VIEW-PARTITION", lambda: counting((4, 6)).flatten_dims(0, 1), None),
    ("NKI-VIEW-PARTITION", lambda: counting((4, 6)).select(0, 1), None),
    ("NKI-VIEW-SIZE", lambda: counting((4, 6)).broadcast(1, 2), None),
    ("NKI-VIEW-SIZE", lambda: counting((4, 6)).squeeze_dim(1), None),
    ("NKI-VIEW-SIZE", lambda: counting((4, 6)).reshape_dim(1, (4, -1)), None),
    ("NKI-VIEW-SIZE", lambda: counting((4, 6)).reshape((4, 7)), None),
    ("NKI-VIEW-LAYOUT", lambda: counting((4, 2, 3)).permute((0, 2, 1)).flatten_dims(1, 2), None),
    ("NKI-WRITE-BROADCAST", lambda: write(counting((4, 1)).broadcast(1, 2), 0), None),
    # access patterns
    ("NKI-AP-VIEW", lambda: counting((4, 6))[:, 1:].ap([[6, 4], [1, 2]]), None),
    ("NKI-AP-PATTERN", lambda: counting((4, 6)).ap([[6, 4], [1, 0]]), None),
    ("NKI-AP-PATTERN", lambda: counting((4, 6)).ap([6, 4]), None),
    ("NKI-AP-PATTERN", lambda: counting((4, 6)).ap([[6, 1]] * 6), None),
    ("NKI-AP-PARTITION", lambda: counting((4, 6)).ap([[12, 2], [1, 2]]), None),
    ("NKI-OOB", lambda: counting((4, 6)).ap([[6, 4], [1, 7]]), None),
    ("NKI-OOB", lambda: counting((4, 6)).ap([[6, 4], [1, 2]], offset=5), None),
    ("NKI-OOB", lambda: counting((4, 6)).ap([[6, 4], [1, 2]], offset=6), None),
    ("NKI-OOB", lambda: counting((4, 6), nl.hbm).ap([[1, 25]]), None),
    ("NKI-OOB-PARTIAL", lambda: _two_rows_from(3), lambda: _two_rows_from(4)),
    (
        "NKI-AP-OFFSETS",
        lambda: _hbm(4, 6).ap([[6, 1]], scalar_offset=_rows(0), vector_offset=_rows(0)),
        None,
    ),
    ("NKI-AP-SCALAR", lambda: _hbm(4, 6).ap([[6, 1]], scalar_offset=_tile(1, 1)), None),
    ("NKI-AP-SCALAR", lambda: _hbm(4, 6).ap([[6, 1]], scalar_offset=_rows(0, 1)), None),
    (
        "NKI-AP-SCALAR",
        lambda: _hbm(4, 6).ap([[6, 1]], scalar_offset=_hbm(1, 1, dtype="int32")),
        None,
    ),
    ("NKI-AP-SCALAR", lambda: _tile(4, 6).ap([[6, 1]], scalar_offset=_rows(0)), None),
    (
        "NKI-AP-SCALAR",
        lambda: _hbm(4, 6).ap([[6, 1]], scalar_offset=_rows(0), indirect_dim=2),
        lambda: _hbm(4, 6).ap([[6, 1]], scalar_offset=_rows(0), indirect_dim=1),
    ),
    ("NKI-AP-VECTOR", lambda: _tile(4, 6).ap([[6, 1]], vector_offset=_rows(0)), None),
    ("NKI-AP-VECTOR", lambda: _hbm(4, 6).ap([[6, 1]], vector_offset=_tile(1, 1)), None),
    (
        "NKI-AP-VECTOR",
        lambda: _hbm(4, 6).ap([[6, 1]], vector_offset=_rows(0), indirect_dim=1),
        None,
    ),
    ("NKI-AP-VECTOR", lambda: _hbm(4, 6).vector_select(1, _rows(0)), None),
    (
        "NKI-INDIRECT-TWICE",
        lambda: _hbm(4, 6, 2).select(0, _rows(1)).select(0, _rows(1)),
        lambda: _hbm(4, 6, 2).select(0, _rows(1)).select(0, 1),
    ),
    ("NKI-INDIRECT-TWICE", lambda: _hbm(4, 6).vector_select(0, _rows(1))[0:1], None),
    ("NKI-INDIRECT-TWICE", lambda: _hbm(4, 6).vector_select(0, _rows(1)).view("int32"), None),
    ("NKI-INDIRECT", lambda: counting((4, 6)).indirect(_rows(0, 0, 0, 0)), None),
    # dma
    ("NKI-BUFFER", lambda: _copied(_psum(2, 2), _hbm(2, 2)), None),
    ("NKI-SHAPE", lambda: _copied(_tile(2, 2), _hbm(2, 3)), None),
    ("NKI-ENUM", lambda: _copied(_tile(2, 2), _hbm(2, 2), dge_mode=3), None),
    ("NKI-PARAMETER", lambda: _copied(_tile(2, 2), _hbm(2, 2), dge_mode="none"), None),
    ("NKI-TARGET", lambda: _copied(_tile(2, 2), _hbm(2, 2), priority=1), None),
    (
        "NKI-DMA-DGE",
        lambda: _copied(_tile(2, 2, dtype="bfloat16"), _hbm(2, 2), **_HWDGE),
        lambda: _copied(_tile(2, 2), _hbm(2, 2), **_HWDGE),
    ),
    ("NKI-DMA-DGE", lambda: _copied(_tile(16, 8, dtype="bfloat16"), _gathered(), **_HWDGE), None),
    (
        "NKI-DMA-DGE",
        lambda: _copied(_tile(16, 8, dtype="bfloat16"), _gathered(), **_NONE),
        lambda: _copied(_tile(16, 8, dtype="bfloat16"), _gathered(), **_SWDGE),
    ),
    (
        "NKI-DMA-DGE",
        lambda: _copied(_tile(2, 2), _hbm(2, 2), engine=nisa.engine.sync, **_NONE),
        lambda: _copied(_tile(2, 2), _hbm(2, 2), engine=nisa.engine.sync, **_HWDGE),
    ),
    (
        "NKI-DMA-INDEX",
        lambda: _copied(_tile(16, 8), _gathered(index=counting((8, 2), dtype="uint32"))),
        None,
    ),
    ("NKI-DMA-OOB-MODE", lambda: _copied(_tile(2, 2), _hbm(2, 2), **_SKIP), None),
    ("NKI-SHAPE", lambda: nisa.dma_transpose(_tile(2, 3), _hbm(2, 3)), None),
    ("NKI-PARAMETER", lambda: _transposed(_hbm(2, 3), axes=(0, 1)), None),
    ("NKI-DTYPE", lambda: nisa.dma_transpose(_tile(3, 2, dtype="bfloat16"), _hbm(2, 3)), None),
    ("NKI-PARTITIONS", lambda: nisa.dma_transpose(_hbm_like_sbuf(), _hbm(2, 129)), None),
    (
        "NKI-DMA-TRANSPOSE",
        lambda: _transposed(_hbm(8, 4, dtype="bfloat16"), **_HWDGE),
        lambda: _transposed(_hbm(16, 4, dtype="bfloat16"), **_HWDGE),
    ),
    ("NKI-DMA-TRANSPOSE", lambda: _transposed(_hbm(16, 4), **_HWDGE), None),
    (
        "NKI-DMA-TRANSPOSE",
        lambda: _transposed(_hbm(2, 4, 8, dtype="bfloat16"), **_HWDGE),
        lambda: _transposed(_hbm(2, 8, 8, dtype="bfloat16"), **_HWDGE),
    ),
    (
        "NKI-DMA-TRANSPOSE-MODE",
        lambda: _transposed(_hbm(16, 4, dtype="bfloat16"), **_SWDGE),
        lambda: _transposed(_hbm(16, 4, dtype="bfloat16"), **_HWDGE),
    ),
    (
        "NKI-DMA-GATHER-TRANSPOSE",
        lambda: _transposed(_gathered(dtype="float32")),
        lambda: _transposed(_gathered(), **_SWDGE),
    ),
    ("NKI-DMA-GATHER-TRANSPOSE", lambda: _transposed(_gathered(rows=15)), None),
    ("NKI-DMA-GATHER-TRANSPOSE", lambda: _transposed(_gathered(), **_HWDGE), None),
    ("NKI-DMA-GATHER-TRANSPOSE", lambda: _transposed(_gathered(index=_rows(*range(16)))), None),
    (
        "NKI-DMA-GATHER-TRANSPOSE",
        lambda: _transposed(_gathered(rows=32, index=counting((16, 2), dtype="uint32"))),
        None,
    ),
    ("NKI-DMA-COMPUTE", lambda: nisa.dma_compute(_tile(2, 2), [_hbm(2, 2)] * 17, nl.add), None),
    ("NKI-DMA-COMPUTE", lambda: nisa.dma_compute(_tile(2, 2), [_hbm(2, 2)], nl.multiply), None),
    (
        "NKI-DMA-COMPUTE",
        lambda: nisa.dma_compute(_tile(2, 2), [_hbm(2, 2)], nl.add, scales=[2.0]),
        lambda: nisa.dma_compute(_tile(2, 2), [_hbm(2, 2)], nl.add, scales=[1.0]),
    ),
    (
        "NKI-DMA-RMW",
        lambda: nisa.dma_compute(_tile(16, 8), [_tile(16, 8), _gathered()], nl.add),
        None,
    ),
    ("NKI-DMA-RMW", lambda: nisa.dma_compute(_tile(16, 8), [_gathered()], nl.add), None),
    ("NKI-DMA-RMW", lambda: _added(unique_indices=False), lambda: _added(unique_indices=True)),
    ("NKI-DMA-RMW", lambda: _added(*[3] * 16), None),
    # tensor engine
    ("NKI-BUFFER", lambda: nisa.nc_matmul(_tile(2, 2), _tile(2, 2), _tile(2, 2)), None),
    ("NKI-BUFFER", lambda: nisa.nc_matmul(_psum(2, 2), _psum(2, 2), _tile(2, 2)), None),
    ("NKI-SHAPE", lambda: nisa.nc_matmul(_psum(2, 2), _tile(3, 2), _tile(4, 2)), None),
    ("NKI-SHAPE", lambda: nisa.nc_matmul(_psum(2, 2), _tile(3, 2), _tile(3, 4)), None),
    ("NKI-DTYPE", lambda: _product(2, 3, 4, "int32"), None),
    ("NKI-DTYPE", lambda: _product(2, 3, 4, "float8_e4m3fn"), None),
    ("NKI-MATMUL-DTYPE", lambda: _product(2, 3, 4, other="float32"), None),
    ("NKI-MATMUL-DST", lambda: _product(2, 3, 4, dst="bfloat16"), None),
    ("NKI-MATMUL-SIZE", lambda: _product(2, 3, 513), lambda: _product(2, 3, 512)),
    (
        "NKI-MATMUL-STATIONARY",
        lambda: nisa.nc_matmul(_psum(6, 4), _tile(3, 2, 3), _tile(3, 4)),
        lambda: nisa.nc_matmul(_psum(6, 4), _tile(3, 1, 6), _tile(3, 4)),
    ),
    (
        "NKI-MATMUL-BANK",
        lambda: nisa.nc_matmul(_psum(2, 1024)[:, 500:520], _tile(3, 2), _tile(3, 20)),
        lambda: nisa.nc_matmul(_psum(2, 1024)[:, 512:532], _tile(3, 2), _tile(3, 20)),
    ),
    ("NKI-MATMUL-TILING", lambda: _product(2, 3, 4, tile_size=(32, 32)), None),
    (
        "NKI-MATMUL-TILING",
        lambda: _product(2, 3, 4, tile_size=(32, 32), tile_position=(16, 0)),
        lambda: _product(2, 3, 4, tile_size=(32, 32), tile_position=(64, 96)),
    ),
    (
        "NKI-MATMUL-TILING",
        lambda: _product(33, 3, 4, tile_size=(32, 32), tile_position=(0, 0)),
        None,
    ),
    (
        "NKI-MATMUL-TILING",
        lambda: _product(2, 3, 4, tile_size=(16, 32), tile_position=(0, 0)),
        None,
    ),
    ("NKI-MATMUL-DOUBLE-ROW", lambda: _product(2, 3, 4, **_DOUBLE), None),
    ("NKI-MATMUL-DOUBLE-ROW", lambda: _product(2, 3, 4, "float8_e4m3", **_DOUBLE), None),
    (
        "NKI-MATMUL-DOUBLE-ROW",
        lambda: _doubled(tile_size=(128, 64)),
        lambda: _doubled(tile_size=()),
    ),
    ("NKI-MATMUL-DOUBLE-ROW", lambda: _doubled(is_transpose=True), None),
    ("NKI-MATMUL-ACCUMULATE", lambda: _product(2, 3, 4, accumulate=True), None),
    (
        "NKI-MATMUL-TRANSPOSE",
        lambda: _product(4, 3, 3, is_transpose=True),
        lambda: _product(4, 3, 3, is_transpose=True, dst="bfloat16"),
    ),
    ("NKI-TRANSPOSE-SIZE", lambda: nisa.nc_transpose(_tile(33, 2), _tile(2, 33)), None),
    (
        "NKI-TRANSPOSE-SIZE",
        lambda: nisa.nc_transpose(_psum(128, 2), _tile(2, 129)),
        lambda: nisa.nc_transpose(_psum(128, 2), _tile(2, 128)),
    ),
    ("NKI-SHAPE", lambda: nisa.nc_transpose(_psum(3, 2), _tile(3, 2)), None),
    ("NKI-DTYPE", lambda: nisa.nc_transpose(_psum(3, 2), _tile(2, 3, dtype="bfloat16")), None),
    # operands
    (
        "NKI-SHAPE",
        lambda: operand(_tile(2, 3), _tile(2, 3)),
        lambda: operand(_tile(2, 1), _tile(2, 3)),
    ),
    ("NKI-SENDRECV-SIZE", lambda: _sent(257), None),
    ("NKI-CORES", lambda: _sent(256), None),
    ("NKI-BARRIER-ALONE", lambda: nisa.core_barrier(_shared(), (0, 1)), None),
]


def _hbm_like_sbuf() -> Any:
    """A destination whose shape an SBUF tensor cannot have."""
    return nl.ndarray((128, 4), nl.float32).ap([[4, 128], [1, 2]]).derive((129, 2), (4, 1), 0)


def _two_rows_from(row: int) -> Any:
    source = counting((4, 6), nl.hbm).ap(
        [[6, 2], [1, 6]], scalar_offset=nisa.register_alloc(row), indirect_dim=0
    )
    return nisa.dma_copy(filled(np.zeros((2, 6), np.int32)), source, **_SKIP)


def _shared() -> Any:
    return nl.ndarray((2, 2), nl.float32, nl.shared_hbm)


def _added(*rows: int, **options: Any) -> None:
    rows = rows or tuple(range(16))
    target = _gathered(dtype="float32", index=_rows(*rows))
    nisa.dma_compute(target, [target, _tile(16, 8)], nl.add, **options)


def _doubled(**modes: Any) -> None:
    left, right = _tile(3, 2, 2, dtype="float8_e4m3"), _tile(3, 2, 4, dtype="float8_e4m3")
    nisa.nc_matmul(_psum(2, 4), left, right, **_DOUBLE, **modes)


def _sent(width: int) -> None:
    modes = {"pipe_id": 0, "dma_engine": nisa.dma_engine.gpsimd_dma}
    nisa.sendrecv(_tile(2, width), _tile(2, width), 1, 1, **modes)


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{i}")
def test_breaking_a_rule_is_reported(case: int) -> None:
    rule, wrong, right = CASES[case]
    with machine.session():
        if right is not None:
            right()
    with machine.session(), breaks(rule):
        wrong()


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{i}")
def test_only_relaxed_rules_pass_when_not_strict(case: int) -> None:
    rule, wrong, _ = CASES[case]
    with machine.session(strict=False):
        if RULES[rule].relaxed:
            wrong()
        else:
            with breaks(rule):
                wrong()


def test_the_message_names_instruction_operand_value_limit_and_page() -> None:
    with machine.session(), pytest.raises(RuleViolationError) as caught:
        _product(2, 3, 513)
    message = str(caught.value)
    for part in ("nc_matmul", "moving free size", "513", "512", "[NKI-MATMUL-SIZE]", "page: nki."):
        assert part in message


def test_two_rules_do_not_share_an_id() -> None:
    known = next(iter(RULES.values()))
    add(known)  # the same rule again is fine
    with pytest.raises(ValueError, match="twice"):
        add(Rule(known.id, "Something else.", "nowhere"))


def test_every_rule_is_broken_by_some_test() -> None:
    """A rule that no test breaks may not work at all."""
    here = Path(__file__).parent
    text = "\n".join(path.read_text() for path in here.rglob("*.py"))
    named = set(re.findall(r"NKI-[A-Z0-9-]*[A-Z0-9]", text))
    assert sorted(set(RULES) - named) == []
