# SPDX-License-Identifier: Apache-2.0
"""Ours and other engines, measured in turns; ``python -m benchmarks.compare --help``."""
