# SPDX-License-Identifier: Apache-2.0
"""A Compiler for Neuron devices. Not yet run on hardware."""

from trnport.adapters.neuronx.capability import check_available
from trnport.adapters.neuronx.compiler import NeuronxCompiler, NeuronxProgram, Settings
from trnport.adapters.neuronx.lowering import interpret
from trnport.adapters.neuronx.rewritten import Rewritten, rewrite

__all__ = [
    "NeuronxCompiler",
    "NeuronxProgram",
    "Rewritten",
    "Settings",
    "check_available",
    "interpret",
    "rewrite",
]
