# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in safetensors files, read lazily."""

from trnport.adapters.safetensors.source import SafetensorsWeightSource

__all__ = ["SafetensorsWeightSource"]
