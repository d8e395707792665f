# SPDX-License-Identifier: Apache-2.0
"""Model architectures, written against the core's ports only."""
