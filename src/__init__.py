# SPDX-License-Identifier: Apache-2.0
"""Serve large language models through vLLM on AWS Trainium, built as ports and adapters."""

__version__ = "0.33.0.0"
