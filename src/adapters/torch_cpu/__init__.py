# SPDX-License-Identifier: Apache-2.0
"""Kernels in plain PyTorch: the reference, and the default without an accelerator."""

from trnport.adapters.torch_cpu.kernels import TorchCpuKernels

__all__ = ["TorchCpuKernels"]
