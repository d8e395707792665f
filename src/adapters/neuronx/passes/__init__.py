# SPDX-License-Identifier: Apache-2.0
"""Rewrites of captured graphs, each one on its own; they know torch and nothing of Neuron."""

from trnport.adapters.neuronx.passes.aliasing import AliasingOutputRewrite
from trnport.adapters.neuronx.passes.base import FXPass, PassManager
from trnport.adapters.neuronx.passes.device import DeviceRewriter
from trnport.adapters.neuronx.passes.inplace import InPlaceToOutOfPlace
from trnport.adapters.neuronx.passes.kernel_config import KernelBackendConfig
from trnport.adapters.neuronx.passes.replica_groups import CollectiveReplicaGroups

__all__ = [
    "AliasingOutputRewrite",
    "CollectiveReplicaGroups",
    "DeviceRewriter",
    "FXPass",
    "InPlaceToOutOfPlace",
    "KernelBackendConfig",
    "PassManager",
    "default_passes",
]


def default_passes() -> PassManager:
    """All passes, in the order in which they depend on each other.

    Outputs for changed inputs come before the changes are rewritten, since afterwards nothing
    tells them; kernels and collectives come last, when every node is in its final form.
    """
    return PassManager(
        (
            DeviceRewriter(),
            AliasingOutputRewrite(),
            InPlaceToOutOfPlace(),
            KernelBackendConfig(),
            CollectiveReplicaGroups(),
        )
    )
