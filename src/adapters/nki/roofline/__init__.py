# SPDX-License-Identifier: Apache-2.0
"""Estimates of speed from counts of the simulator. Nothing here was measured on hardware."""

from trnport.adapters.nki.counting import launches
from trnport.adapters.nki.roofline.cost import describe
from trnport.adapters.nki.roofline.count import count_call
from trnport.adapters.nki.roofline.record import ProgramNotes, ShapeNotes, shape_kernels
from trnport.adapters.nki.roofline.step import StepEstimate, estimate_step

__all__ = [
    "ProgramNotes",
    "ShapeNotes",
    "StepEstimate",
    "count_call",
    "describe",
    "estimate_step",
    "launches",
    "shape_kernels",
]
