# SPDX-License-Identifier: Apache-2.0
"""Loggers that show up where vLLM's own messages do."""

from __future__ import annotations

from typing import Any


def plugin_logger(name: str) -> Any:
    """A vLLM logger for one of our modules.

    vLLM configures handlers and levels for the logger "vllm" and its children only, so ours
    is named as one of them.

    Args:
        name: The module's ``__name__``.
    """
    from vllm.logger import init_logger

    return init_logger(f"vllm.{name}")
