# SPDX-License-Identifier: Apache-2.0
"""Sharded modules: parameters with their weight loaders, computing through Kernels."""

from trnport.core.nn.attention import OutputProjection, QKVProjection
from trnport.core.nn.embedding import LMHead, VocabDimShardedEmbedding
from trnport.core.nn.mlp import GatedMLP
from trnport.core.nn.norm import RMSNorm
from trnport.core.nn.rope import RopeParameters, RotaryEmbedding

__all__ = [
    "GatedMLP",
    "LMHead",
    "OutputProjection",
    "QKVProjection",
    "RMSNorm",
    "RopeParameters",
    "RotaryEmbedding",
    "VocabDimShardedEmbedding",
]
