# SPDX-License-Identifier: Apache-2.0
"""The engine: batch state, buckets, step inputs, warm-up and sampling."""
