# SPDX-License-Identifier: Apache-2.0
"""DMA copies, transposes and sums against numpy."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from tests.adapters.nki.support import breaks, counting, filled
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.access import read, write


@pytest.fixture(autouse=True)
def core() -> Iterator[machine.Core]:
    with machine.session() as running:
        yield running


def _noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _index(*rows: int, dtype: str = "int32") -> nl.NkiTensor:
    return filled(np.array(rows, np.int64)[:, None], dtype=dtype)


def test_copy_keeps_every_bit_of_the_same_dtype() -> None:
    bits = np.array([[0x7FC1, 0xFF81, 0x0001, 0x8000]], np.uint16)  # NaNs, subnormal, -0
    src = filled(bits, nl.hbm, "uint16").view(nl.bfloat16)
    dst = nl.ndarray((1, 4), nl.bfloat16)
    nisa.dma_copy(dst=dst, src=src)
    np.testing.assert_array_equal(read(dst.view(nl.uint16)), bits)


def test_copy_casts_by_way_of_float32() -> None:
    values = np.array([[2**24 + 1, 2.5, 3.5, -1e9]], np.float64)
    whole = filled(values.astype(np.int32), nl.hbm, "int32")
    dst = nl.ndarray((1, 4), nl.int32)
    nisa.dma_copy(dst=dst, src=whole)
    assert read(dst)[0, 0] == 2**24 + 1  # no cast, no float32
    rounded = nl.ndarray((1, 4), nl.int16)
    nisa.dma_copy(dst=rounded, src=filled(values.astype(np.float32), nl.hbm))
    np.testing.assert_array_equal(read(rounded), [[32767, 2, 4, -32768]])
    low = nl.ndarray((1, 4), nl.bfloat16)
    nisa.dma_copy(dst=low, src=filled(_noise(1, 4), nl.hbm))
    np.testing.assert_array_equal(read(low), _noise(1, 4).astype(ml_dtypes.bfloat16))


def test_copy_reorders_by_the_views_of_both_sides() -> None:
    a = _noise(4, 6)
    dst = nl.ndarray((6, 8), nl.float32)
    nisa.dma_copy(dst=dst[:, 0:4], src=filled(a, nl.hbm).permute((1, 0)))
    np.testing.assert_array_equal(read(dst[:, 0:4]), a.T)
    with breaks("NKI-UNWRITTEN"):
        read(dst)
    flat = nl.ndarray((24,), nl.float32, nl.hbm)
    nisa.dma_copy(dst=flat, src=dst[:, 0:4])
    np.testing.assert_array_equal(read(flat), a.T.reshape(-1))


def test_gather_and_scatter_move_rows() -> None:
    a = _noise(10, 7)
    table = filled(a, nl.hbm)
    dst = nl.ndarray((4, 5), nl.float32)
    rows = _index(9, 0, 3, 3, dtype="uint32")
    nisa.dma_copy(dst=dst, src=table.ap([[7, 4], [1, 5]], offset=1, vector_offset=rows))
    np.testing.assert_array_equal(read(dst), a[[9, 0, 3, 3], 1:6])
    out = filled(np.zeros((10, 7), np.float32), nl.hbm)
    rows = _index(2, 8, 5, 0)
    nisa.dma_copy(dst=out.ap([[7, 4], [1, 5]], vector_offset=rows), src=dst)
    expected = np.zeros((10, 7), np.float32)
    expected[[2, 8, 5, 0], :5] = a[[9, 0, 3, 3], 1:6]
    np.testing.assert_array_equal(read(out), expected)


def test_rows_that_a_scatter_left_out_stay_unwritten() -> None:
    out = nl.ndarray((4, 3), nl.int32, nl.hbm)
    target = out.ap([[3, 2], [1, 3]], vector_offset=_index(3, 0))
    nisa.dma_copy(dst=target, src=counting((2, 3)))
    np.testing.assert_array_equal(read(out[0:1]), [[3, 4, 5]])
    np.testing.assert_array_equal(read(out[3:4]), [[0, 1, 2]])
    with breaks("NKI-UNWRITTEN"):
        read(out[1:2])


def test_rows_out_of_bounds_are_reported_or_skipped() -> None:
    a = counting((4, 3), nl.hbm)
    dst = filled(np.full((3, 3), 77, np.int32))
    for wrong in (4, -1):
        src = a.ap([[3, 3], [1, 3]], vector_offset=_index(1, wrong, 0))
        with breaks("NKI-OOB"):
            nisa.dma_copy(dst=dst, src=src)
        nisa.dma_copy(dst=dst, src=src, oob_mode=nisa.oob_mode.skip)
        np.testing.assert_array_equal(read(dst), [[3, 4, 5], [77, 77, 77], [0, 1, 2]])
        out = filled(np.zeros((4, 3), np.int32), nl.hbm)
        nisa.dma_copy(
            dst=out.ap([[3, 3], [1, 3]], vector_offset=_index(1, wrong, 0)),
            src=counting((3, 3)),
            oob_mode=nisa.oob_mode.skip,
        )
        np.testing.assert_array_equal(read(out), [[6, 7, 8], [0, 1, 2], [0] * 3, [0] * 3])


def test_an_offset_counts_towards_the_bounds_of_rows() -> None:
    a, dst = counting((4, 3), nl.hbm), nl.ndarray((1, 3), nl.int32)
    for row in (2, 3):
        src = a.ap([[3, 1], [1, 3]], offset=3, vector_offset=_index(row))
        if row == 2:
            nisa.dma_copy(dst=dst, src=src)
            np.testing.assert_array_equal(read(dst), [[9, 10, 11]])
        else:
            with breaks("NKI-OOB"):
                nisa.dma_copy(dst=dst, src=src)


def test_skipped_rows_stay_unwritten() -> None:
    dst = nl.ndarray((2, 3), nl.int32)
    src = counting((4, 3), nl.hbm).ap([[3, 2], [1, 3]], vector_offset=_index(1, 9))
    nisa.dma_copy(dst=dst, src=src, oob_mode=nisa.oob_mode.skip)
    np.testing.assert_array_equal(read(dst[0:1]), [[3, 4, 5]])
    with breaks("NKI-UNWRITTEN"):
        read(dst)


def test_dynamic_start_out_of_bounds_is_skipped_whole() -> None:
    dst = filled(np.full((2, 3), 5, np.int32))
    register = nisa.register_alloc(3)
    src = counting((4, 3), nl.hbm).ap([[3, 2], [1, 3]], scalar_offset=register)
    with breaks("NKI-OOB"):
        nisa.dma_copy(dst=dst, src=src)
    with breaks("NKI-OOB-PARTIAL"):  # row 3 is there, row 4 is not
        nisa.dma_copy(dst=dst, src=src, oob_mode=nisa.oob_mode.skip)
    nisa.register_move(register, 4)
    nisa.dma_copy(dst=dst, src=src, oob_mode=nisa.oob_mode.skip)
    assert (read(dst) == 5).all()
    nisa.register_move(register, 2)
    nisa.dma_copy(dst=dst, src=src)
    np.testing.assert_array_equal(read(dst), np.arange(12).reshape(4, 3)[2:4])


@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 3), (1, 0)), ((5, 4, 3), (2, 1, 0)), ((5, 2, 4, 3), (3, 1, 2, 0))]
)
def test_transpose_by_rank(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    a = _noise(*shape)
    dst = nl.ndarray([shape[i] for i in axes], nl.float32)
    nisa.dma_transpose(dst=dst, src=filled(a, nl.hbm), axes=axes)
    np.testing.assert_array_equal(read(dst), a.transpose(axes))


@pytest.mark.parametrize("columns", [1, 2])
def test_transpose_of_gathered_rows_reads_indices_by_column(columns: int) -> None:
    a = _noise(300, 24).astype(ml_dtypes.bfloat16)
    count = 128 * columns
    index = np.random.default_rng(0).integers(0, 300, (128, columns)).astype(np.uint32)
    src = filled(a, nl.hbm).ap([[24, count], [1, 24]], vector_offset=filled(index))
    dst = nl.ndarray((24, count), nl.bfloat16)
    nisa.dma_transpose(dst=dst, src=src)
    np.testing.assert_array_equal(read(dst), a[index.T.reshape(-1)].T)


def test_transpose_skips_rows_out_of_bounds() -> None:
    a = counting((20, 4), nl.hbm, "int16")
    index = np.arange(16, dtype=np.uint32)[:, None].copy()
    index[3] = 2**32 - 1
    dst = filled(np.full((4, 16), 9, np.int16))
    src = a.ap([[4, 16], [1, 4]], vector_offset=filled(index))
    nisa.dma_transpose(dst=dst, src=src, oob_mode=nisa.oob_mode.skip)
    expected = np.arange(64).reshape(16, 4).T.copy()
    expected[:, 3] = 9
    np.testing.assert_array_equal(read(dst), expected)


def test_compute_adds_in_float32() -> None:
    parts = [_noise(3, 5).astype(ml_dtypes.bfloat16) for _ in range(3)]
    dst = nl.ndarray((3, 5), nl.float32)
    nisa.dma_compute(dst=dst, srcs=[filled(p, nl.hbm) for p in parts], reduce_op=nl.add)
    total = (parts[0].astype(np.float32) + parts[1].astype(np.float32)) + parts[2].astype(
        np.float32
    )
    np.testing.assert_array_equal(read(dst), total)


def test_compute_adds_into_rows_and_from_rows() -> None:
    a, tile = _noise(6, 5), _noise(2, 5) * 2
    table = filled(a, nl.hbm)
    rows = table.ap([[5, 2], [1, 5]], vector_offset=_index(4, 1))
    nisa.dma_compute(dst=rows, srcs=[rows, filled(tile)], reduce_op=nl.add)
    expected = a.copy()
    expected[[4, 1]] += tile
    np.testing.assert_array_equal(read(table), expected)
    dst = filled(tile)
    nisa.dma_compute(dst=dst, srcs=[dst, rows], reduce_op=nl.add)
    np.testing.assert_array_equal(read(dst), tile + expected[[4, 1]])


def test_counts_bytes_descriptors_and_the_shortest_run(core: machine.Core) -> None:
    src = filled(_noise(8, 64), nl.hbm)
    dst = nl.ndarray((8, 64), nl.float32)
    nisa.dma_copy(dst=dst, src=src)
    assert core.counters.dma_bytes == {("hbm", "sbuf"): 8 * 64 * 4}
    assert (core.counters.dma_descriptors, core.counters.dma_shortest_run) == (8, 256)
    nisa.dma_copy(dst=src[:, 0:16], src=dst[:, 0:16])
    assert core.counters.dma_bytes["sbuf", "hbm"] == 8 * 16 * 4
    assert (core.counters.dma_descriptors, core.counters.dma_shortest_run) == (16, 64)


def test_hbm_to_hbm_and_sbuf_to_sbuf() -> None:
    a = _noise(3, 4)
    for where in (nl.hbm, nl.sbuf):
        dst = nl.ndarray((3, 4), nl.float32, where)
        nisa.dma_copy(dst=dst, src=filled(a, where))
        np.testing.assert_array_equal(read(dst), a)
    write(dst[0:1], 0.0)
    assert (read(dst)[0] == 0).all()
