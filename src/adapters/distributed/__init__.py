# SPDX-License-Identifier: Apache-2.0
"""Collectives over torch.distributed: gloo between processes here."""

from trnport.adapters.distributed.collectives import DistributedCollectives

__all__ = ["DistributedCollectives"]
