# SPDX-License-Identifier: Apache-2.0
"""Loaders that give each rank one equal share of one stored tensor.

``shard_dim`` always counts the dimensions of the *parameter*: a parameter ``[in, out]``
sharded over its outputs has ``shard_dim=1``, also when the checkpoint holds ``[out, in]``
(``is_storage_transposed=True``), and its ranks then read rows.
"""

from __future__ import annotations

from trnport.core.errors import CheckpointError, ConfigError
from trnport.core.parallel.sharding import shard_range
from trnport.core.ports.weights import TensorSlice
from trnport.core.weights.layout import Piece, ShardLayout
from trnport.core.weights.loader import Shape, WeightLoader, exactly


def sharding_weight_loader(
    shard_dim: int, shard_size: int, num_shards: int, is_storage_transposed: bool = False
) -> WeightLoader:
    """Shard ``rank % num_shards`` of one stored tensor.

    Args:
        shard_dim: Dimension of the parameter that is sharded.
        shard_size: Size of that dimension on each rank.
        num_shards: Number of shards; the stored dimension holds ``shard_size * num_shards``.
        is_storage_transposed: The stored tensor is the transpose of the parameter.
    """
    return sharding_weight_loader_with_padding(
        shard_dim, shard_size, num_shards, is_storage_transposed, full_size=shard_size * num_shards
    )


def sharding_weight_loader_with_padding(
    shard_dim: int,
    shard_size: int,
    num_shards: int,
    is_storage_transposed: bool = False,
    *,
    full_size: int,
) -> WeightLoader:
    """Shard ``rank % num_shards`` of one stored tensor, zero-padded at the end.

    A shard that lies wholly in the padding reads nothing.

    Args:
        shard_dim: Dimension of the parameter that is sharded.
        shard_size: Size of that dimension on each rank, padding included.
        num_shards: Number of shards.
        is_storage_transposed: The stored tensor is the transpose of the parameter.
        full_size: Size of the stored dimension, at most ``shard_size * num_shards``.

    Raises:
        ConfigError: The shards do not hold ``full_size`` entries.
    """
    padded_size = shard_size * num_shards
    if num_shards < 1 or not 0 <= full_size <= padded_size:
        raise ConfigError(
            f"{num_shards} shard(s) of shard_size={shard_size} do not hold full_size={full_size}"
        )
    layout = ShardLayout(shard_dim, is_storage_transposed)

    def pieces(slices: list[TensorSlice], rank: int) -> list[Piece]:
        (stored,) = exactly(1, slices)
        layout.check(stored, full_size)
        shard = shard_range(padded_size, num_shards, rank % num_shards)
        start, stop = (min(edge, full_size) for edge in shard)
        real, padding = Piece(stop - start, stored, start), Piece(shard_size - (stop - start))
        return [piece for piece in (real, padding) if piece.size]

    def stored_shapes(shape: Shape) -> list[Shape]:
        return [layout.stored_shape(shape, shard_size, full_size)]

    return layout.loader(pieces, stored_shapes)


def transposed_weight_loader() -> WeightLoader:
    """The whole stored ``[out, in]`` matrix as a parameter ``[in, out]``, on every rank."""
    layout = ShardLayout(0, transposed=True)

    def pieces(slices: list[TensorSlice], rank: int) -> list[Piece]:  # noqa: ARG001
        (stored,) = exactly(1, slices)
        if len(stored.shape) != 2:
            raise CheckpointError(f"stored shape {list(stored.shape)} is not a matrix")
        return [Piece(stored.shape[1], stored)]

    def stored_shapes(shape: Shape) -> list[Shape]:
        if len(shape) != 2:
            raise ConfigError(f"a transposing loader fills matrices, not shape {list(shape)}")
        return [shape[::-1]]

    return layout.loader(pieces, stored_shapes)
