# SPDX-License-Identifier: Apache-2.0
"""Engine cycles of compute instructions, from the published per-instruction rules.

"Performance modes" of the Trainium2 architecture guide: the vector engine takes one element per
cycle and input; copies and tensor-scalar operations of 16-bit data are two or four times as fast,
tensor-tensor operations twice.
"""

from __future__ import annotations

from trnport.adapters.nki.simulator.memory import PSUM
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = ["ISSUE", "one_input", "two_inputs"]

ISSUE = 64  # "NKI engine selection": least cycles between two instructions


def one_input(engine: str, dst: NkiTensor, data: NkiTensor) -> float:
    """Cycles of tensor_copy and tensor_scalar."""
    free = data.free_size
    if engine != "vector" or data.itemsize != 2 or dst.itemsize != 2:
        return free
    on_psum = dst.buffer is PSUM or data.buffer is PSUM
    dense = dst.strides[-1] == 1 and data.strides[-1] == 1
    return free / 4 if dense and not on_psum else free / 2


def two_inputs(engine: str, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor) -> float:
    """Cycles of tensor_tensor and its relatives."""
    free = data1.free_size
    halves = all(t.itemsize == 2 for t in (dst, data1, data2))
    if engine == "vector" and halves and PSUM not in {data1.buffer, data2.buffer}:
        return free
    return 2 * free
