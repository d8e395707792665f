# SPDX-License-Identifier: Apache-2.0
"""A program as calls of compiled parts, some of which are called many times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import attrs
import torch
from torch import Tensor

Part = Callable[[list[Tensor]], Sequence[Tensor]]
"""Compiled code. It takes a list, which it may empty."""


@attrs.frozen
class Call:
    """One call of a part; numbers are places in the list of a program's values.

    Attributes:
        part: Which part.
        inputs: Where its inputs are.
        outputs: Where its outputs go.
    """

    part: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@attrs.frozen
class Plan:
    """The calls of a program in order.

    Attributes:
        num_inputs: Inputs of the program, the first of its values.
        num_values: Places for values. One is used again when nobody needs what it held.
        calls: The calls.
        results: Where the program's results are.
    """

    num_inputs: int
    num_values: int
    calls: tuple[Call, ...]
    results: tuple[int, ...]

    def runner(self, parts: Sequence[Part]) -> Callable[[list[Tensor]], list[Tensor]]:
        """The program, given its compiled parts. It takes its inputs as a list.

        Between two parts it does as little as it can: a model has dozens of layers.
        """
        room: list[Any] = [None] * (self.num_values - self.num_inputs)
        steps = [(parts[call.part], _getter(call.inputs), call.outputs) for call in self.calls]
        results = self.results

        def run(inputs: list[Tensor]) -> list[Tensor]:
            values = [*inputs, *room]
            with torch.no_grad():
                for part, get, places in steps:
                    for place, value in zip(places, part(list(get(values))), strict=True):
                        values[place] = value
            return [values[place] for place in results]

        return run


def _getter(places: tuple[int, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def allocate(num_inputs: int, calls: Sequence[Call], results: Sequence[int]) -> Plan:
    """Plan with few places: those of values that no later call reads are used again.

    Args:
        num_inputs: Inputs of the program.
        calls: Calls that number each value anew, inputs first.
        results: Numbers of the results.
    """
    last = {value: at for at, call in enumerate(calls) for value in call.inputs}
    last |= dict.fromkeys(results, len(calls))
    place = {value: value for value in range(num_inputs)}
    free: list[int] = []
    size = num_inputs
    placed: list[Call] = []
    for at, call in enumerate(calls):
        inputs = tuple(place[value] for value in call.inputs)
        free += [
            place[value]
            for value in dict.fromkeys(call.inputs)
            if value >= num_inputs and last[value] == at
        ]
        for value in call.outputs:
            if not free:
                free.append(size)
                size += 1
            place[value] = free.pop()
        placed.append(Call(call.part, inputs, tuple(place[value] for value in call.outputs)))
    return Plan(num_inputs, size, tuple(placed), tuple(place[value] for value in results))
