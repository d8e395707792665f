# SPDX-License-Identifier: Apache-2.0
"""Rewrites of captured graphs, each one on its own; they know torch and nothing of Neuron."""

from trnport.adapters.neuronx.passes.aliasing import AliasingOutputRewrite
from trnport.adapters.neuronx.passes.base import FXPass, PassManager
from trnport.adapters.neuronx.passes.device import DeviceRewriter
from trnport.adapters.neuronx.passes.inplace import InPlaceToOutOfPlace

__all__ = [
    "AliasingOutputRewrite",
    "DeviceRewriter",
    "FXPass",
    "InPlaceToOutOfPlace",
    "PassManager",
]
