# SPDX-License-Identifier: Apache-2.0
"""Loaders that fuse a rank's query, key and value heads from three stored tensors.

Both take the stored tensors in the order Q, K, V, and serve weights and biases alike.
``shard_dim`` counts the dimensions of the *parameter*, as in
:mod:`trnport.core.weights.sharding`.
"""

from __future__ import annotations

from collections.abc import Callable

from trnport.core.errors import CheckpointError, ConfigError
from trnport.core.parallel.sharding import HeadSharding
from trnport.core.ports.weights import TensorSlice
from trnport.core.weights.layout import Piece, ShardLayout
from trnport.core.weights.loader import Shape, WeightLoader, exactly

Runs = list[tuple[int, int]]
"""(start, size) of entries of one stored tensor, in the order in which a rank holds them."""


def fused_qkv_weight_loader(
    q_size: int,
    kv_size: int,
    shard_dim: int,
    num_shards: int,
    is_storage_transposed: bool = False,
    num_kv_replicas: int = 1,
) -> WeightLoader:
    """Query shard ``rank % num_shards`` with the key and value shard that belongs to it.

    Args:
        q_size: Query columns of each rank: its query heads times the head size.
        kv_size: Key columns of each rank, and as many value columns.
        shard_dim: Dimension of the parameter that is sharded.
        num_shards: Number of query shards.
        is_storage_transposed: The stored tensors are the transpose of the parameter.
        num_kv_replicas: Consecutive ranks that hold the same keys and values; more than 1
            when there are fewer KV heads than ranks.

    Raises:
        ConfigError: ``num_kv_replicas`` does not divide ``num_shards``.
    """
    if num_kv_replicas < 1 or num_shards % num_kv_replicas:
        raise ConfigError(
            f"num_kv_replicas={num_kv_replicas} does not divide num_shards={num_shards}"
        )
    layout = ShardLayout(shard_dim, is_storage_transposed)

    def q_runs(rank: int) -> Runs:
        return [(rank % num_shards * q_size, q_size)]

    def kv_runs(rank: int) -> Runs:
        return [(rank % num_shards // num_kv_replicas * kv_size, kv_size)]

    return _fused_loader(
        layout,
        share=q_size + 2 * kv_size,
        q_full=q_size * num_shards,
        kv_full=kv_size * (num_shards // num_kv_replicas),
        q_runs=q_runs,
        kv_runs=kv_runs,
    )


def gqa_qkv_weight_loader(
    heads: HeadSharding,
    head_dim: int,
    is_storage_transposed: bool = False,
    shard_dim: int = -1,
) -> WeightLoader:
    """Query, key and value heads of a rank at any tensor-parallel degree that divides the heads.

    Where the degree neither divides nor is a multiple of the KV heads, a rank holds a KV
    head more than once (see :class:`HeadSharding`); the head is read once and repeated.

    Args:
        heads: Which heads each rank holds; rank is taken modulo ``heads.tp``.
        head_dim: Size of a head.
        is_storage_transposed: The stored tensors are the transpose of the parameter.
        shard_dim: Dimension of the parameter that is sharded. The last one fits a weight
            ``[hidden, columns]`` and a bias ``[columns]``.
    """
    layout = ShardLayout(shard_dim, is_storage_transposed)
    q_size = heads.heads_per_rank * head_dim

    def q_runs(rank: int) -> Runs:
        return [(rank % heads.tp * q_size, q_size)]

    def kv_runs(rank: int) -> Runs:
        # Consecutive query heads need consecutive KV heads, some of them more than once.
        needed = heads.kv_heads(rank % heads.tp)
        if needed == list(range(needed[0], needed[-1] + 1)):
            return [(needed[0] * head_dim, len(needed) * head_dim)]
        return [(head * head_dim, head_dim) for head in needed]

    return _fused_loader(
        layout,
        share=q_size + 2 * heads.kv_heads_per_rank * head_dim,
        q_full=heads.num_heads * head_dim,
        kv_full=heads.num_kv_heads * head_dim,
        q_runs=q_runs,
        kv_runs=kv_runs,
    )


def _fused_loader(
    layout: ShardLayout,
    *,
    share: int,
    q_full: int,
    kv_full: int,
    q_runs: Callable[[int], Runs],
    kv_runs: Callable[[int], Runs],
) -> WeightLoader:
    full_sizes = [q_full, kv_full, kv_full]

    def pieces(slices: list[TensorSlice], rank: int) -> list[Piece]:
        q, k, v = exactly(3, slices)
        for stored, full in zip(slices, full_sizes, strict=True):
            layout.check(stored, full)
        _check_same_inputs(layout, slices)
        found: list[Piece] = []
        for stored, runs in ((q, q_runs(rank)), (k, kv_runs(rank)), (v, kv_runs(rank))):
            found += _pieces(stored, runs, sum(piece.size for piece in found))
        return found

    def stored_shapes(shape: Shape) -> list[Shape]:
        return [layout.stored_shape(shape, share, full) for full in full_sizes]

    return layout.loader(pieces, stored_shapes)


def _pieces(stored: TensorSlice, runs: Runs, at: int) -> list[Piece]:
    """Pieces from position ``at`` of the parameter on; a run is read once and then repeated."""
    found: list[Piece] = []
    known: dict[int, int] = {}
    for start, size in runs:
        found.append(Piece(size, stored, start, repeats=known.get(start)))
        known.setdefault(start, at)
        at += size
    return found


def _check_same_inputs(layout: ShardLayout, slices: list[TensorSlice]) -> None:
    """Q, K and V read the same hidden state, so their other dimensions must agree."""
    others = set()
    for stored in slices:
        dim = layout.stored_dim(len(stored.shape))
        others.add((*stored.shape[:dim], *stored.shape[dim + 1 :]))
    if len(others) > 1:
        shapes = [list(stored.shape) for stored in slices]
        raise CheckpointError(f"stored Q, K and V do not fit together: shapes {shapes}")
