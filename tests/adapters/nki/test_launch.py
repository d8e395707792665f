# SPDX-License-Identifier: Apache-2.0
"""Launches: arguments in place, results in the caller's framework, one and two cores."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.adapters.nki.support import breaks
from trnport.adapters.nki.simulator import NkiValidationError, isa, jit, simulate
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator.access import read_f32, write
from trnport.adapters.nki.simulator.rendezvous import DeadlockError

nisa: Any = isa


def _doubled(x: Any) -> Any:
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    tile = nl.load(x)
    write(tile, read_f32(tile) * 2)
    nl.store(out, tile)
    return out


def _doubled_in_place(x: Any) -> Any:
    tile = nl.load(x)
    write(tile, read_f32(tile) * 2)
    nl.store(x, tile)
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_numpy_in_numpy_out(dtype: Any) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype)
    result = simulate(_doubled)(x)
    assert type(result) is np.ndarray
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, x * 2)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.float8_e5m2]
)
def test_torch_in_torch_out(dtype: torch.dtype) -> None:
    x = torch.arange(12).reshape(3, 4).to(dtype)
    result = simulate(_doubled)(x)
    assert result.dtype == dtype
    assert torch.equal(result.float(), (x.float() * 2).to(dtype).float())


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("precise", [True, False])
def test_arguments_change_in_place(dtype: torch.dtype, contiguous: bool, precise: bool) -> None:
    x = torch.arange(12.0).reshape(4, 3).to(dtype)
    x = x if contiguous else x.T
    expected = (x.float() * 2).to(dtype).float()
    result = simulate(_doubled_in_place, precise=precise)(x)
    assert result is x
    assert torch.equal(x.float(), expected)
    array = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    array = array if contiguous else array.T
    wanted = array * 2
    assert simulate(_doubled_in_place, precise=precise)(array) is array
    np.testing.assert_array_equal(array, wanted)


def test_precise_mode_does_not_round() -> None:
    def halves(x: Any) -> Any:
        out = nl.ndarray(x.shape, nl.float32, nl.shared_hbm)
        low = nl.ndarray(x.shape, nl.bfloat16)
        isa.dma_copy(dst=low, src=x)
        isa.dma_copy(dst=out, src=low)
        return out

    x = np.full((1, 2), 1.001, np.float32)
    assert simulate(halves)(x)[0, 0] == 1.0
    assert simulate(halves, precise=True)(x)[0, 0] == x[0, 0]


def test_constants_tuples_and_dictionaries_pass_through() -> None:
    def kernel(pair: Any, scale: int, options: Any, *, name: str) -> Any:
        assert (scale, name, options["flag"]) == (3, "k", True)
        return _doubled(pair[1]), {"first": _doubled(pair[0])}

    x = np.ones((2, 2), np.float32)
    second, rest = simulate(kernel)((x, x + 1), 3, {"flag": True}, name="k")
    assert (second == 4).all()
    assert (rest["first"] == 2).all()
    with breaks("NKI-LIST-ARGUMENT"):
        simulate(kernel)([x, x], 3, {"flag": True}, name="k")
    simulate(kernel, strict=False)([x, x], 3, {"flag": True}, name="k")


def test_results_live_in_shared_hbm() -> None:
    def kernel(x: Any) -> Any:
        return nl.load(x)

    with breaks("NKI-OUTPUT"):
        simulate(kernel)(np.ones((2, 2), np.float32))


def test_unknown_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        simulate(_doubled)(np.ones((2, 2), np.int64))


def test_kernels_nest_and_take_a_bare_index() -> None:
    inner = jit(_doubled)

    @jit
    def outer(x: Any) -> Any:
        return inner[1](inner(x))

    x = np.ones((2, 2), np.float32)
    assert (simulate(outer)(x) == 4).all()
    assert (outer(x) == 4).all()
    for wrong in ((2,), 3, "2", True):
        with pytest.raises(NkiValidationError, match="NKI-LNC"):
            outer[wrong]
    with pytest.raises(NkiValidationError, match="platform_target"):
        jit(platform_target="trn2")(_doubled)
    with pytest.raises(ValueError, match="trn2, trn3"):
        simulate(outer, target="trn9")


def _halves(x: Any) -> Any:
    """Each core doubles half of the rows of one shared result."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="out")
    rows = x.shape[0] // nl.num_programs()
    part = slice(nl.program_id() * rows, (nl.program_id() + 1) * rows)
    tile = nl.load(x[part])
    write(tile, read_f32(tile) * 2)
    nl.store(out[part], tile)
    return out


@pytest.mark.parametrize("lnc", [1, 2])
def test_two_cores_give_what_one_gives(lnc: int) -> None:
    x = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    run = simulate(jit(_halves)[lnc])
    np.testing.assert_array_equal(run(x), x * 2)
    assert len(run.counters) == lnc
    assert sum(c.dma_bytes["hbm", "sbuf"] for c in run.counters) == x.nbytes


def test_cores_exchange_tiles() -> None:
    def kernel(x: Any) -> Any:
        me = nl.program_id()
        out = nl.ndarray((2, 4), nl.float32, nl.shared_hbm)
        mine, theirs = nl.load(x[me : me + 1]), nl.ndarray((1, 4), nl.float32)
        nisa.sendrecv(mine, theirs, 1 - me, 1 - me, pipe_id=0)
        nl.store(out[me : me + 1], theirs)
        nisa.core_barrier(out, (0, 1))
        both = nl.load(out)
        total = nl.ndarray((2, 4), nl.float32, nl.shared_hbm)
        nl.store(total[me : me + 1], both[1 - me : 2 - me])
        return out, total

    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    out, total = simulate(kernel, lnc=2, strict=False)(x)
    np.testing.assert_array_equal(out, x[::-1])
    np.testing.assert_array_equal(total, x)


def test_a_core_without_its_partner_is_a_deadlock_not_a_hang() -> None:
    def alone(x: Any) -> Any:
        if nl.program_id() == 0:
            nisa.core_barrier(x, (0, 1))
        return x

    def crossed(x: Any) -> Any:
        tile, other = nl.load(x), nl.ndarray(x.shape, x.dtype)
        nisa.sendrecv(tile, other, 1 - nl.program_id(), 1 - nl.program_id(), nl.program_id())
        return x

    x = np.ones((2, 2), np.float32)
    with pytest.raises(DeadlockError, match=r"core 0 waits at .*core_barrier.*core 1 has returned"):
        simulate(alone, lnc=2)(x)
    with pytest.raises(DeadlockError, match=r"core 0 waits .*core 1 waits"):
        simulate(crossed, lnc=2)(x)


def test_an_error_on_one_core_ends_the_launch() -> None:
    def kernel(x: Any) -> Any:
        if nl.program_id() == 1:
            raise KeyError("mine")
        nisa.core_barrier(x, (0, 1))
        return x

    def first(x: Any) -> Any:
        if nl.program_id() == 0:
            raise KeyError("mine")
        return x

    for failing in (kernel, first):
        with pytest.raises(KeyError, match="mine"):
            simulate(failing, lnc=2)(np.ones((2, 2), np.float32))


def test_shared_memory_is_matched_by_order() -> None:
    def kernel(x: Any) -> Any:
        width = 4 + nl.program_id()
        return nl.ndarray((2, width), nl.float32, nl.shared_hbm)

    with breaks("NKI-SHARED-ORDER"):
        simulate(kernel, lnc=2)(np.ones((2, 2), np.float32))


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("use", ["read", "write", "met"])
def test_cores_meet_between_a_write_and_the_other_cores_read(gathered: bool, use: str) -> None:
    def kernel(x: Any, index: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        rows = nl.load(index)
        there = out.ap([[2, 2], [1, 2]], vector_offset=rows) if gathered else out[0:2]
        tile = nl.load(x[0:2])
        if nl.program_id() == 0:
            isa.dma_copy(dst=there, src=tile)
        if use == "met":
            nisa.core_barrier(out, (0, 1))
        if nl.program_id() == 1:
            isa.dma_copy(dst=there, src=tile) if use == "write" else isa.dma_copy(tile, there)
        return out

    arguments = np.ones((4, 2), np.float32), np.array([[1], [3]], np.int32)
    if use != "read":  # both may store the same values
        simulate(kernel, lnc=2)(*arguments)
        return
    with breaks("NKI-RACE"):
        simulate(kernel, lnc=2)(*arguments)
    simulate(kernel, lnc=2, strict=False)(*arguments)


def test_exchange_needs_two_cores() -> None:
    def kernel(x: Any) -> Any:
        nisa.core_barrier(x, (0, 1))

    with breaks("NKI-BARRIER-ALONE"):
        simulate(kernel)(np.ones((2, 2), np.float32))
    relaxed = simulate(kernel, strict=False)
    relaxed(np.ones((2, 2), np.float32))
    assert relaxed.counters[0].waived == {"NKI-BARRIER-ALONE": 1}
