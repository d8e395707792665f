# SPDX-License-Identifier: Apache-2.0
"""What runs inside an engine's own environment: the standard library and that engine alone."""
