# SPDX-License-Identifier: Apache-2.0
"""Selection, search, shuffles, and what two cores and registers do."""

from __future__ import annotations

from typing import Any

import torch

from tests.adapters.nki.real.program import EXACT, Program, fresh, integers, load, normal, store
from trnport.adapters.nki.nki import nisa, nl

MOST = -3.4028234663852886e38


def counted(x: Any) -> Any:
    """Affine numbers with a negative step, cast to fp32."""
    out = fresh((x.shape[0], 2, 5))
    nisa.iota(dst=out, pattern=[[-7, 2], [3, 5]], offset=4, channel_multiplier=11)
    return store(out)


def triangle(x: Any) -> Any:
    """Elements with partition >= column, the others minus one."""
    out = fresh(x.shape)
    nisa.affine_select(
        dst=out,
        pattern=[[-1, x.shape[1]]],
        channel_multiplier=1,
        on_true_tile=load(x),
        on_false_value=-1.0,
        cmp_op=nl.greater_equal,
    )
    return store(out)


def in_range(x: Any, low: Any, high: Any) -> Any:
    """Elements with low <= column < high per partition, and their maximum."""
    out, most = fresh(x.shape), fresh((x.shape[0], 1))
    nisa.range_select(
        dst=out,
        on_true_tile=load(x),
        comp_op0=nl.greater_equal,
        comp_op1=nl.less,
        bound0=load(low),
        bound1=load(high),
        reduce_res=most,
        on_false_value=MOST,
    )
    return store(out), store(most)


def selected(x: Any, flags: Any) -> Any:
    """Elements by predicate, else a constant, and their maximum."""
    out, most = fresh(x.shape), fresh((x.shape[0], 1))
    nisa.select_reduce(
        dst=out,
        predicate=load(flags),
        on_true=load(x),
        on_false=-2.5,
        reduce_res=most,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    return store(out), store(most)


def copied_where(x: Any, y: Any, flags: Any) -> Any:
    """Elements of x where the flag is set, in a tile that holds y."""
    out = load(y)
    nisa.tensor_copy_predicated(dst=out, src=load(x), predicate=load(flags))
    return store(out)


def best_eight(x: Any) -> Any:
    """The eight largest, where they are, and the rest; equal values included."""
    tile = load(x)
    values, places, rest = fresh((x.shape[0], 8)), fresh((x.shape[0], 8), nl.uint32), fresh(x.shape)
    nisa.max8(dst=values, src=tile)
    nisa.nc_find_index8(dst=places, data=tile, vals=values)
    nisa.nc_match_replace8(dst=rest, data=tile, vals=values, imm=-9.0)
    return store(values), store(places), store(rest)


def missing(x: Any, values: Any) -> Any:
    """Indices of values that are not there, and of one that is there twice."""
    places = fresh((x.shape[0], 8), nl.uint32)
    nisa.nc_find_index8(dst=places, data=load(x), vals=load(values))
    return store(places)


def shuffled(x: Any) -> Any:
    """Partitions of each quadrant by a mask that keeps some."""
    out = fresh(x.shape, x.dtype)
    nisa.memset(dst=out, value=5)
    nisa.nc_stream_shuffle(
        dst=out, src=load(x), shuffle_mask=[31, 255, *[(i * 5) % 32 for i in range(30)]]
    )
    return store(out)


def gathered_locally(x: Any, index: Any) -> Any:
    """Pairs of elements by 16-partition index."""
    out = fresh((x.shape[0], 20))
    nisa.local_gather(
        dst=out, src_buffer=load(x), index=load(index), num_elem_per_idx=2, num_valid_indices=10
    )
    return store(out)


def gathered_columns(x: Any, index: Any) -> Any:
    """Elements within each partition."""
    out = fresh(index.shape)
    nisa.nc_n_gather(dst=out, data=load(x), indices=load(index))
    return store(out)


def from_register(x: Any, row: Any) -> Any:
    """A row of HBM whose number went through a register."""
    register = nisa.register_alloc()
    nisa.register_load(register, load(row))
    out = fresh((1, x.shape[1]))
    pattern = [[x.shape[1], 1], [1, x.shape[1]]]
    nisa.dma_copy(dst=out, src=x.ap(pattern, scalar_offset=register, indirect_dim=0))
    return store(out)


def counted_loop(x: Any) -> Any:
    """Rows in reverse halves, one per turn of a loop on the device."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    pattern = [[x.shape[1], 1], [1, x.shape[1]]]

    def body(i: Any) -> None:
        tile = fresh((1, x.shape[1]))
        nisa.dma_copy(dst=tile, src=x.ap(pattern, scalar_offset=i, indirect_dim=0))
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out.ap(pattern, scalar_offset=i, indirect_dim=0), src=tile)

    nl.fori_loop(0, x.shape[0], body)
    return out


def exchanged(x: Any) -> Any:
    """Each core sends its half and stores what it gets."""
    me = nl.program_id(0)
    half = x.shape[0] // 2
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile, got = load(x[me * half : me * half + half, :]), fresh((half, x.shape[1]))
    nisa.sendrecv(src=tile, dst=got, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    nisa.dma_copy(dst=out[me * half : me * half + half, :], src=got)
    return out


def met(x: Any) -> Any:
    """Each core writes a half of HBM, then reads the other half."""
    me = nl.program_id(0)
    half = x.shape[0] // 2
    middle = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mine, other = me * half, (1 - me) * half
    nisa.dma_copy(dst=middle[mine : mine + half, :], src=load(x[mine : mine + half, :]))
    nisa.core_barrier(middle, (0, 1))
    nisa.dma_copy(dst=out[mine : mine + half, :], src=load(middle[other : other + half, :]))
    return out


def _ties() -> tuple[Any, ...]:
    return ((normal(5, 40) * 2).round(),)


def _flags(dtype: torch.dtype) -> Any:
    return (normal(7, 33, seed=5) > 0).to(dtype)


def _index() -> Any:
    return integers([[(p * 3 + c * 7) % 23 for c in range(1)] for p in range(32)], torch.uint16)


PROGRAMS = {
    "iota": Program(counted, lambda: (normal(9, 1),)),
    "affine_select": Program(triangle, lambda: (normal(9, 12),)),
    "range_select": Program(
        in_range,
        lambda: (normal(7, 33), normal(7, 1).abs().mul(4).floor(), normal(7, 1).floor() + 20),
    ),
    "select_reduce": Program(selected, lambda: (normal(7, 33), _flags(torch.uint8))),
    "tensor_copy_predicated": Program(
        copied_where, lambda: (normal(7, 33), normal(7, 33, seed=1), _flags(torch.uint8))
    ),
    "max8 with equal values": Program(best_eight, _ties),
    "nc_find_index8 with misses": Program(
        missing,
        lambda: (_ties()[0], torch.tensor([[0.0, 0.0, 99.0, 1.0, 98.0, 2.0, 0.0, 1.0]] * 5)),
    ),
    "nc_stream_shuffle": Program(shuffled, lambda: (normal(64, 5),)),
    "nc_stream_shuffle of int32": Program(
        shuffled, lambda: (integers([[2**24 + p] for p in range(32)]),)
    ),
    "local_gather": Program(gathered_locally, lambda: (normal(32, 24), _index())),
    "nc_n_gather": Program(
        gathered_columns,
        lambda: (normal(3, 9), integers([[8, 0, 4], [1, 1, 2], [7, 5, 3]]).view(torch.uint32)),
    ),
    "scalar offset from a register": Program(
        from_register, lambda: (normal(9, 6), integers([[4]]))
    ),
    "fori_loop": Program(counted_loop, lambda: (normal(6, 5),)),
    "sendrecv": Program(exchanged, lambda: (normal(16, 5),), EXACT, (2,)),
    "core_barrier": Program(met, lambda: (normal(16, 5),), EXACT, (2,)),
}
