# SPDX-License-Identifier: Apache-2.0
"""Paged KV caches as torch tensors."""

from trnport.adapters.paged.store import PagedKVCacheStore

__all__ = ["PagedKVCacheStore"]
