# SPDX-License-Identifier: Apache-2.0
"""Adapters: each binds the core's ports to one technology and knows no other adapter."""
