# SPDX-License-Identifier: Apache-2.0
"""NKI kernels, and a simulator that runs them without an accelerator."""
