# SPDX-License-Identifier: Apache-2.0
"""A Compiler that compiles nothing and keeps every promise of the port."""

from trnport.adapters.eager.compiler import EagerCompiler, EagerProgram

__all__ = ["EagerCompiler", "EagerProgram"]
