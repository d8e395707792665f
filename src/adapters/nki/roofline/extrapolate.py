# SPDX-License-Identifier: Apache-2.0
"""Counts of a large call from smaller ones, where a kernel repeats itself.

A kernel does the same for every tile, so its counts are a polynomial in the number of tiles. It
is found from small calls, tried on one more, and given up if that one does not lie on it.

Peaks of memory are no sums: they level off, or grow with the size. The line through the two largest
calls says which.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import attrs

from trnport.adapters.nki.roofline.cost import CoreCost

Cores = tuple[CoreCost, ...]


def extrapolate(count: Callable[[int], Cores], size: int, step: int, degree: int) -> Cores:
    """Counts at ``size``.

    Args:
        count: Counts at a size.
        size: Size wanted.
        step: Size of what repeats; only sizes that leave the same remainder are compared.
        degree: Degree of the polynomial.

    Returns:
        What ``count(size)`` returns.
    """
    first = size % step or step
    if first < step:
        first += step  # a lone partial tile takes other paths
    points = [first + i * step for i in range(degree + 2)]
    if size <= points[-1]:
        return count(size)
    seen = [count(point) for point in points]
    known, proof = points[:-1], points[-1]
    guessed = _at(proof, known, seen[:-1])
    if [_without_peaks(core) for core in guessed] != [_without_peaks(core) for core in seen[-1]]:
        return count(size)
    return tuple(
        attrs.evolve(core, sbuf_peak=peaks.sbuf_peak, psum_peak=peaks.psum_peak)
        for core, peaks in zip(
            _at(size, points, seen), _at(size, points[-2:], seen[-2:]), strict=True
        )
    )


def _without_peaks(core: CoreCost) -> CoreCost:
    return attrs.evolve(core, sbuf_peak=0, psum_peak=0)


def _at(size: int, points: list[int], seen: list[Cores]) -> Cores:
    """The polynomial through ``points``, core by core and count by count."""
    cores = []
    for core in zip(*seen, strict=False):
        numbers = [cost.numbers() for cost in core]
        names = {name: None for each in numbers for name in each}
        weights = _weights(size, points)
        sums = {
            name: sum(
                (w * each.get(name, Fraction(0)) for w, each in zip(weights, numbers, strict=True)),
                Fraction(0),
            )
            for name in names
        }
        cores.append(CoreCost.from_numbers(sums))
    return tuple(cores)


def _weights(size: int, points: list[int]) -> list[Fraction]:
    """Lagrange's weights of the values at ``points``."""
    weights = []
    for i, here in enumerate(points):
        weight = Fraction(1)
        for j, other in enumerate(points):
            if i != j:
                weight *= Fraction(size - other, here - other)
        weights.append(weight)
    return weights
