# SPDX-License-Identifier: Apache-2.0
"""Measurements; see README.md."""
