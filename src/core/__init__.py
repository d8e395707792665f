# SPDX-License-Identifier: Apache-2.0
"""The pure core: ports, operators, sharding, weights, KV bookkeeping and the engine.

It imports torch and attrs, and nothing that touches a device, a file, a process group or
an environment variable. That work belongs to adapters, which reach it through the five
ports in :mod:`trnport.core.ports`.
"""
