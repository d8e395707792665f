# SPDX-License-Identifier: Apache-2.0
"""A Compiler that makes whole programs for the host's CPU with PyTorch's inductor."""

from trnport.adapters.inductor.compiler import InductorCompiler

__all__ = ["InductorCompiler"]
