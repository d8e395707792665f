# SPDX-License-Identifier: Apache-2.0
"""What every WeightSource adapter has to decide alike: which index is legal, which name is not."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def resolve_box(
    index: slice | tuple[slice, ...], shape: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The [start, stop) of every dimension that an index into a stored tensor asks for.

    Python clamps a slice that runs past the end. Here that is an error: a loader with a
    wrong size would otherwise get a short tensor and no complaint.

    Args:
        index: One slice of step 1 for each leading dimension; ``()`` reads everything.
        shape: Shape of the stored tensor.

    Raises:
        IndexError: There are more slices than dimensions, or one is not a slice, is not
            of step 1, or does not satisfy ``0 <= start <= stop <= size``.
    """
    slices = index if isinstance(index, tuple) else (index,)
    if len(slices) > len(shape):
        raise IndexError(f"{len(slices)} slices for a stored tensor of shape {list(shape)}")
    whole = [slice(None)] * (len(shape) - len(slices))
    return tuple(
        _resolve(part, dim, size)
        for dim, (part, size) in enumerate(zip([*slices, *whole], shape, strict=True))
    )


def _resolve(part: object, dim: int, size: int) -> tuple[int, int]:
    if not isinstance(part, slice) or part.step not in {None, 1}:
        raise IndexError(f"dimension {dim}: {part!r} is not a slice of step 1")
    start = 0 if part.start is None else part.start
    stop = size if part.stop is None else part.stop
    if not 0 <= start <= stop <= size:
        raise IndexError(f"dimension {dim}: [{start}, {stop}) does not lie in [0, {size})")
    return start, stop


def unknown_tensor(name: str, names: Sequence[str]) -> KeyError:
    """The error for a tensor that a checkpoint lacks, with the nearest names it has."""
    near = difflib.get_close_matches(name, names, n=3)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return KeyError(f"no tensor named {name!r} in this checkpoint{hint}")
