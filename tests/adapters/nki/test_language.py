# SPDX-License-Identifier: Apache-2.0
"""`nki.language`: creation, loops, registers, names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.adapters.nki.support import breaks, filled
from trnport.adapters.nki.simulator import NotSimulatedError, machine
from trnport.adapters.nki.simulator import isa as _isa
from trnport.adapters.nki.simulator import language as _language
from trnport.adapters.nki.simulator.access import read, write

nl: Any = _language
nisa: Any = _isa


@pytest.fixture(autouse=True)
def core() -> Iterator[machine.Core]:
    with machine.session() as running:
        yield running


def test_dtypes_are_their_names() -> None:
    assert nl.bfloat16 == "bfloat16"
    assert nl.ndarray((2, 2), ml_dtypes.bfloat16).dtype == nl.bfloat16
    assert nl.bool_ == "bool"
    with pytest.raises(TypeError, match="float64"):
        nl.ndarray((2, 2), np.float64)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([0.5, 1.5, 2.5, -0.5, -1.5], "int32", [0, 2, 2, 0, -2]),
        ([300.0, -5.0, 255.4, 254.5, 255.5], "uint8", [255, 0, 255, 254, 255]),
        ([3e9, -3e9, 2147483520.0, 1.0, -1.0], "int32", [2**31 - 1, -(2**31), 2147483520, 1, -1]),
        (
            [3e38, -3e38, 5e9, 4294967040.0, -1.0],
            "uint32",
            [2**32 - 1, 0, 2**32 - 1, 4294967040, 0],
        ),
    ],
)
def test_casts_to_integers_round_to_even_and_saturate(
    values: list[float], dtype: str, expected: list[int]
) -> None:
    np.testing.assert_array_equal(
        read(filled(np.array([values], np.float32), dtype=dtype)), [expected]
    )


def test_casts_to_floats_round_to_nearest_even() -> None:
    halfway = np.array([[1 + 2**-8, 1 + 3 * 2**-8, 65519.9]], np.float32)
    found = read(filled(halfway, dtype="bfloat16")).astype(np.float32)
    np.testing.assert_array_equal(found, [[1.0, 1 + 2**-6, 65536.0]])
    tf32 = read(
        filled(np.array([[1 + 2**-11, 1 + 3 * 2**-11, np.nan]], np.float32), dtype="tfloat32")
    )
    np.testing.assert_array_equal(tf32, [[1.0, 1 + 2**-9, np.nan]])


def test_fresh_memory_is_refused_or_poison() -> None:
    with breaks("NKI-UNWRITTEN"):
        read(nl.ndarray((2, 2), nl.float32))
    with machine.session(strict=False):
        for dtype in ("float32", "bfloat16", "float8_e4m3", "float8_e4m3fn", "float16"):
            assert np.isnan(read(nl.ndarray((2, 3), dtype)).astype(np.float32)).all()
        assert (read(nl.ndarray((2, 3), nl.int16)) == 4).all()


def test_creation_fills() -> None:
    assert (read(nl.zeros((2, 3), nl.int32)) == 0).all()
    assert (read(nl.ones((2, 3), nl.bfloat16, nl.hbm)) == 1).all()
    assert (read(nl.full((2, 3), 7, nl.float32)) == 7).all()
    base = nl.ones((2, 3), nl.float16, nl.hbm)
    assert nl.empty_like(base).buffer == nl.hbm
    assert (read(nl.zeros_like(base, dtype=nl.float32, buffer=nl.sbuf)) == 0).all()
    identity = nl.shared_identity_matrix(5, nl.bfloat16)
    np.testing.assert_array_equal(read(identity).astype(np.float32), np.eye(5))
    assert nl.shared_identity_matrix(5, nl.bfloat16) is identity
    dst = nl.ndarray((4, 4), nl.float32)
    np.testing.assert_array_equal(read(nl.shared_identity_matrix(4, dst=dst)), np.eye(4))


def test_constants_come_from_arrays_and_files(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    np.save(tmp_path / "c.npy", values)
    for source in (values, str(tmp_path / "c.npy")):
        t = nl.shared_constant(source)
        assert t.buffer == nl.shared_hbm
        np.testing.assert_array_equal(read(t), values)


def test_copies_and_products() -> None:
    a = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    b = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    x, y = nl.load(filled(a, nl.hbm)), filled(b)
    np.testing.assert_array_equal(read(nl.copy(x)), a)
    np.testing.assert_array_equal(read(nl.transpose(x)), a.T)
    np.testing.assert_array_equal(read(nl.load_transpose2d(filled(a, nl.hbm))), a.T)
    np.testing.assert_allclose(read(nl.matmul(x, y, transpose_x=True)), a.T @ b, rtol=1e-5)
    with breaks("NKI-MATMUL-LAYOUT"):
        nl.matmul(x, y)
    np.testing.assert_array_equal(read(nl.broadcast_to(y[:, 0:1], (5, 4))), b[:, [0] * 4])
    assert nl.expand_dims(y, 1).shape == (5, 1, 3)
    out = nl.ndarray((5, 7), nl.bfloat16, nl.hbm)
    nl.store(out, x)
    np.testing.assert_array_equal(read(out), a.astype(ml_dtypes.bfloat16))


def test_math_wrappers_name_the_instruction_to_use() -> None:
    x = nl.zeros((2, 2), nl.float32)
    with pytest.raises(NotSimulatedError, match="tensor_tensor"):
        nl.add(x, x)
    with pytest.raises(NotSimulatedError, match="activation"):
        nl.exp(x)
    with breaks("NKI-DIVIDE"):
        nl.divide(x, x)
    with pytest.raises(AttributeError, match=r"0\.6"):
        _ = nl.mgrid
    with pytest.raises(AttributeError, match="not simulated"):
        _ = nisa.no_such_instruction


def test_unrolled_ranges_are_range() -> None:
    assert list(nl.affine_range(3)) == [0, 1, 2]
    assert list(nl.sequential_range(1, 7, 2)) == [1, 3, 5]
    assert list(nl.static_range(2, 4)) == [2, 3]


def test_fori_loop_hands_out_a_frozen_register() -> None:
    source = filled(np.arange(10, dtype=np.float32)[None], nl.hbm)
    out = nl.zeros((1, 10), nl.float32, nl.hbm)
    temp = nl.ndarray((1, 1), nl.float32)

    def body(i: Any) -> None:
        nisa.dma_copy(temp, source.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1))
        nisa.dma_copy(out.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1), temp)

    nl.fori_loop(1, nisa.register_alloc(8), body, step=3)
    np.testing.assert_array_equal(np.flatnonzero(read(out)), [1, 4, 7])
    for bad in (int, bool, range, [0, 1].__getitem__):
        with pytest.raises(TypeError, match="NKI-REGISTER-VALUE"):
            nl.fori_loop(0, 1, bad)
    with breaks("NKI-REGISTER-FROZEN"):
        nl.fori_loop(0, 1, lambda i: nisa.register_move(i, 3))
    with breaks("NKI-LOOP-BOUNDS"):
        nl.fori_loop(0, 1, lambda i: None, step=0)
    with breaks("NKI-LOOP-NO-REORDER"), nl.no_reorder():
        nl.fori_loop(0, 1, lambda i: None)
    assert len(list(nl.dynamic_range(nisa.register_alloc(3)))) == 3


def test_while_loop_runs_until_its_register_is_zero() -> None:
    count = nl.full((1, 1), 3, nl.int32)
    seen = []

    def body(register: Any) -> Any:
        value = int(read(count)[0, 0])
        seen.append(value)
        write(count, value - 1)
        nisa.register_load(register, count)
        return register

    register = nisa.register_alloc()
    nisa.register_load(register, count)
    nl.while_loop(register, body)
    assert seen == [3, 2, 1]
    nl.while_loop(nisa.register_alloc(0), body)
    assert len(seen) == 3
    with breaks("NKI-LOOP-CONDITION"):
        nl.while_loop(nisa.register_alloc(1), lambda r: None)


def test_registers_move_load_and_store() -> None:
    a, b = nisa.register_alloc(5), nisa.register_alloc()
    with breaks("NKI-REGISTER-EMPTY"):
        nisa.register_move(a, b)
    nisa.register_move(b, a)
    t = nl.ndarray((1, 1), nl.int32)
    nisa.register_store(t, b)
    assert read(t)[0, 0] == 5
    nisa.register_move(a, 2**32 - 1)  # registers hold 32 bits
    nisa.register_store(t, a)
    assert read(t)[0, 0] == -1
    for call in (
        lambda: nisa.register_alloc(1.5),
        lambda: nisa.register_move(a, 1.5),
        lambda: nisa.register_load(a, nl.zeros((1, 2), nl.int32)),
        lambda: nisa.register_load(a, nl.zeros((1, 1), nl.float32)),
        lambda: nisa.register_store(t, 5),
    ):
        with breaks("NKI-REGISTER-OPERAND"):
            call()


def test_instruction_handles_take_dependencies() -> None:
    t = filled(np.ones((2, 2), np.float32))
    first = nisa.dma_copy(nl.ndarray((2, 2), nl.float32), t)
    second = nisa.dma_copy(nl.ndarray((2, 2), nl.float32), t)
    assert second.depends_on(first) is second
    with pytest.raises(TypeError, match="depends_on"):
        second.depends_on(None)


def test_objects_take_any_field() -> None:
    class Config(nl.NKIObject):
        size: int
        name: str = "x"

        def __post_init__(self) -> None:
            self.twice = self.size * 2

    config = Config(size=3, extra=True)
    assert (config.size, config.name, config.twice, config.extra) == (3, "x", 6, True)

    @dataclasses.dataclass(frozen=True)
    class Frozen(nl.NKIObject):
        size: int = 4

    assert Frozen().size == 4
    assert Frozen(5).size == 5

    @dataclasses.dataclass
    class Plain(nl.NKIObject):
        size = None
        name: str = "x"

        def __post_init__(self) -> None:
            self.twice = self.size * 2

    plain = Plain(size=4)
    assert (plain.size, plain.twice, plain.name) == (4, 8, "x")


@pytest.mark.parametrize(("target", "sbuf"), [("trn2", 212_984), ("trn3", 245_752)])
def test_tile_sizes_follow_the_target(target: str, sbuf: int) -> None:
    with machine.session(target):
        assert nl.tile_size.pmax == 128
        assert nl.tile_size.sbuf_fmax_bytes == nl.tile_size.total_available_sbuf_size == sbuf
        assert nl.tile_size.sbuf_fmax == sbuf // 4
        assert nl.tile_size.psum_bank_fmax == nl.tile_size.psum_fmax == 512
        assert nl.tile_size.psum_num_banks == 8
        assert nl.tile_size.sbuf_size_bytes % (128 * 1024) == 0
        assert nisa.get_nc_version() >= nisa.nc_version.gen3
        assert (nisa.get_nc_version() < nisa.nc_version.gen4) == (target == "trn2")


def test_program_names_and_buffers(capsys: pytest.CaptureFixture[str]) -> None:
    assert (nl.program_id(0), nl.num_programs(), nl.program_ndim()) == (0, 1, 0)
    with breaks("NKI-PARAMETER"):
        nl.program_id(1)
    t = nl.ones((1, 2), nl.float32)
    assert nl.is_sbuf(t.buffer)
    assert nl.is_on_chip(nl.psum)
    assert nl.is_psum(nl.psum)
    assert nl.is_hbm(nl.shared_hbm)
    assert nl.is_hbm(nl.hbm)
    assert not nl.is_hbm(t.buffer)
    assert t.buffer == "sbuf"
    nl.device_print("tile", t)
    assert "tile" in capsys.readouterr().out


def test_nothing_runs_outside_a_kernel() -> None:
    with machine.running(None), pytest.raises(RuntimeError, match="no kernel is running"):  # type: ignore[arg-type]
        nl.ndarray((2, 2), nl.float32)
