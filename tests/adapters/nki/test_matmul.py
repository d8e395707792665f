# SPDX-License-Identifier: Apache-2.0
"""Tensor engine against numpy, and PSUM accumulation element by element."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.nki.support import breaks, filled
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.access import read, read_f32, write


@pytest.fixture(autouse=True)
def core() -> Iterator[machine.Core]:
    with machine.session() as running:
        yield running


def _noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _plain(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Sum over partitions in plain loops, in float64."""
    k, m = left.shape
    n = right.shape[1]
    out = np.zeros((m, n))
    for i in range(m):
        for j in range(n):
            out[i, j] = sum(float(left[p, i]) * float(right[p, j]) for p in range(k))
    return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"])
def test_product_contracts_over_partitions(dtype: str) -> None:
    left, right = filled(_noise(0, 7, 5), dtype=dtype), filled(_noise(1, 7, 9), dtype=dtype)
    dst = nl.ndarray((5, 9), nl.float32, nl.psum)
    nisa.nc_matmul(dst, left, right)
    np.testing.assert_allclose(read(dst), _plain(read(left), read(right)), rtol=1e-5, atol=1e-5)


def test_infinity_and_nan_are_results_not_warnings() -> None:
    left, right = np.full((3, 2), np.inf, np.float32), np.zeros((3, 4), np.float32)
    right[0, 1] = np.nan
    dst = nl.ndarray((2, 4), nl.float32, nl.psum)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nisa.nc_matmul(dst, filled(left), filled(right))
    assert np.isnan(read(dst)).all()


def test_double_row_contracts_over_two_rows_per_partition() -> None:
    left = filled(_noise(0, 6, 2, 5), dtype="float8_e4m3")
    right = filled(_noise(1, 6, 2, 9), dtype="float8_e5m2")
    dst = nl.ndarray((5, 9), nl.float32, nl.psum)
    nisa.nc_matmul(dst, left, right, perf_mode=nisa.matmul_perf_mode.double_row)
    expected = _plain(read(left).reshape(12, 5), read(right).reshape(12, 9))
    np.testing.assert_allclose(read(dst), expected, rtol=1e-5, atol=1e-5)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_accumulation_is_decided_per_psum_location(data: st.DataObject) -> None:
    """Overlapping regions, any mode: the first write overwrites, later ones add."""
    with machine.session():
        psum = nl.ndarray((8, 12), nl.float32, nl.psum)
        expected = np.zeros((8, 12))
        touched = np.zeros((8, 12), bool)
        for _ in range(data.draw(st.integers(1, 5))):
            m = data.draw(st.integers(1, 8))
            c0 = data.draw(st.integers(0, 10))
            c1 = data.draw(st.integers(c0 + 1, 12))
            seed = data.draw(st.integers(0, 99))
            left, right = _noise(seed, 3, m), _noise(seed + 100, 3, c1 - c0)
            region = (slice(0, m), slice(c0, c1))
            mode = data.draw(st.sampled_from([None, False, True]))
            if mode and not touched[region].all():
                mode = None
            nisa.nc_matmul(psum[0:m, c0:c1], filled(left), filled(right), accumulate=mode)
            product = _plain(left, right)
            adds = touched[region] & (mode is not False)
            expected[region] = np.where(adds, expected[region], 0) + product
            touched[region] = True
        found = np.array([[np.nan] * 12] * 8)
        for i in range(8):
            for j in range(12):
                if touched[i, j]:
                    found[i, j] = psum.storage.window("float32", i * 12 + j, (1,), (1,))[0]
        np.testing.assert_allclose(found[touched], expected[touched], rtol=1e-4, atol=1e-4)


def test_accumulating_onto_other_data_is_refused_before_gen4() -> None:
    left, right = filled(_noise(0, 3, 2)), filled(_noise(1, 3, 4))
    psum = filled(np.ones((2, 4), np.float32), nl.psum)
    for mode in (None, True):
        with breaks("NKI-MATMUL-ACCUMULATE"):
            nisa.nc_matmul(psum, left, right, accumulate=mode)
    nisa.nc_matmul(psum, left, right, accumulate=False)
    nisa.nc_matmul(psum, left, right, accumulate=True)
    np.testing.assert_allclose(
        read(psum), 2 * _plain(_noise(0, 3, 2), _noise(1, 3, 4)), rtol=1e-5, atol=1e-5
    )
    with machine.session("trn3"):
        psum = filled(np.ones((2, 4), np.float32), nl.psum)
        nisa.nc_matmul(psum, filled(_noise(0, 3, 2)), filled(_noise(1, 3, 4)), accumulate=True)
        np.testing.assert_allclose(
            read(psum), 1 + _plain(_noise(0, 3, 2), _noise(1, 3, 4)), rtol=1e-5, atol=1e-5
        )


def test_gen4_adds_in_float32_and_rounds_to_bfloat16() -> None:
    with machine.session("trn3"):
        left, right = _noise(0, 3, 2), _noise(1, 3, 4)
        psum = nl.ndarray((2, 4), nl.bfloat16, nl.psum)
        for _ in range(2):
            nisa.nc_matmul(psum, filled(left), filled(right))
        once = _plain(left, right).astype(np.float32)
        first = once.astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(read(psum), (first + once).astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("engine", ["tensor", "vector", "unknown"])
def test_transpose_keeps_every_bit(engine: str) -> None:
    a = _noise(0, 5, 12)
    a[0, 0], a[1, 2], a[2, 3] = np.nan, np.inf, -0.0
    data = filled(a.reshape(5, 3, 4), dtype="bfloat16")
    dst = nl.ndarray((12, 5), nl.bfloat16, nl.sbuf if engine == "vector" else nl.psum)
    nisa.nc_transpose(dst, data, engine=nisa.engine[engine])
    np.testing.assert_array_equal(
        read(dst).view(np.uint16), read(data).reshape(5, 12).T.copy().view(np.uint16)
    )


def test_transpose_mode_of_matmul_keeps_nan() -> None:
    a = _noise(0, 4, 6)
    a[1, 1] = np.nan
    dst = nl.ndarray((6, 4), nl.bfloat16, nl.psum)
    data, identity = filled(a, dtype="bfloat16"), filled(np.eye(4), dtype="bfloat16")
    nisa.nc_matmul(dst, data, identity, is_transpose=True)
    np.testing.assert_array_equal(read_f32(dst), read_f32(data).T)


def test_counts_cycles_and_macs(core: machine.Core) -> None:
    write(psum := nl.ndarray((64, 100), nl.float32, nl.psum), 0.0)
    for dtype in ("bfloat16", "float32"):
        left, right = (
            filled(_noise(0, 32, 64), dtype=dtype),
            filled(_noise(1, 32, 100), dtype=dtype),
        )
        nisa.nc_matmul(psum, left, right, accumulate=False)
    assert core.counters.pe_cycles == 100 + 400
    assert core.counters.pe_useful_macs == 2 * 32 * 64 * 100
    assert core.counters.pe_macs == 2 * 128 * 128 * 100
    nisa.nc_matmul(psum[:, 0:1], left, right[:, 0:1], accumulate=False)
    assert core.counters.pe_cycles == 500 + 4 * 64  # no matmul is shorter than 64 cycles
