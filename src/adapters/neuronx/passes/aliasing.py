# SPDX-License-Identifier: Apache-2.0
"""Make changed inputs outputs, and say which output is which input's buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from trnport.adapters.neuronx.passes.analysis import Analysis

ROOT_INPUT = "root_input"
"""Key in the meta of a node that changes inputs: their numbers, ascending."""


class AliasingOutputRewrite:
    """Finds the inputs that a graph changes and returns their final content as well.

    A compiled program has no other way to change a caller's buffer than an output that is
    declared to be the same memory as an input. This pass only declares; the nodes that change
    something are rewritten by the next one.
    """

    name = "aliasing_output_rewrite"

    def run(
        self, gm: GraphModule, *, example_inputs: Sequence[Any] | None = None, **_: Any
    ) -> Mapping[str, Any]:
        """Append outputs.

        Args:
            gm: The graph; its outputs are a flat tuple, or a single one, which becomes one.
            example_inputs: One per placeholder, for shapes; when None, what Dynamo left.

        Returns:
            ``io_map``: output number to the number of the input in whose buffer it belongs,
            one output per input at most. ``original_output_count``: outputs that the graph had
            of its own; the appended ones follow. ``mutated_inputs``: numbers of the inputs
            that change.

        Raises:
            TypeError: The outputs are nested.
            NotImplementedError: See :class:`Analysis`.
        """
        analysis = Analysis(gm, example_inputs)
        numbers = {node: i for i, node in enumerate(analysis.placeholders)}
        mutated = _mark(analysis, numbers)
        outputs = _outputs(gm)
        count = len(outputs)
        io_map = _whole_inputs(analysis, numbers, outputs)
        for number in sorted(mutated - set(io_map.values())):
            io_map[len(outputs)] = number
            outputs.append(analysis.placeholders[number])
        gm.graph.output_node().args = (tuple(outputs),)
        gm.recompile()
        return {
            "io_map": io_map,
            "original_output_count": count,
            "mutated_inputs": tuple(sorted(mutated)),
        }


def _mark(analysis: Analysis, numbers: Mapping[Node, int]) -> set[int]:
    """Note on every changing node which inputs it changes; all of them together."""
    mutated: set[int] = set()
    for node, write in analysis.writes.items():
        found = [analysis.root(target) for target in write.targets]
        roots = {numbers[root] for root in found if root in numbers}
        if roots:
            node.meta[ROOT_INPUT] = tuple(sorted(roots))
        mutated |= roots
    return mutated


def _outputs(gm: GraphModule) -> list[Any]:
    outputs = gm.graph.output_node().args[0]
    found = [*outputs] if isinstance(outputs, list | tuple) else [outputs]
    for output in found:
        if isinstance(output, list | tuple | dict):
            raise TypeError(f"the graph's outputs are nested ({output}); make them one flat tuple")
    return found


def _whole_inputs(
    analysis: Analysis, numbers: Mapping[Node, int], outputs: Sequence[Any]
) -> dict[int, int]:
    """Outputs that are an input, element for element, the first one of each input.

    A view of another shape or order is left out: put into the buffer it would be wrong there.
    """
    io_map: dict[int, int] = {}
    for position, output in enumerate(outputs):
        if not isinstance(output, Node) or not analysis.is_whole(output):
            continue
        number = numbers.get(analysis.root(output))
        if number is not None and number not in io_map.values():
            io_map[position] = number
    return io_map
