# SPDX-License-Identifier: Apache-2.0
"""Sets of kernels by name: ours, those that packages bring, and those a program registers."""

from trnport.adapters.kernel_sets.registry import GROUP, Factory, KernelSets, Operators

__all__ = ["GROUP", "Factory", "KernelSets", "Operators"]
