# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on disk, shared by processes and kept between starts."""

from trnport.adapters.program_cache.entry import Entry
from trnport.adapters.program_cache.store import ProgramCache
from trnport.adapters.program_cache.upkeep import prune, verify

__all__ = ["Entry", "ProgramCache", "prune", "verify"]
