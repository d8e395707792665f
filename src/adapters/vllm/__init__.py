# SPDX-License-Identifier: Apache-2.0
"""The vLLM adapter: a platform plugin for vLLM 0.33.

vLLM calls the two functions below in every process it starts, so they are idempotent, touch
no device and import nothing heavy.
"""

from __future__ import annotations

PLATFORM = "trnport.adapters.vllm.platform.NeuronPlatform"
"""Dotted path of the platform class, imported by vLLM only where it is active."""


def register() -> str | None:
    """Entry point of ``vllm.platform_plugins``.

    Returns:
        The platform's dotted path where trnport should run, else None. The reason is logged
        either way.
    """
    from trnport.adapters.vllm.activation import decide
    from trnport.adapters.vllm.log import plugin_logger
    from trnport.adapters.vllm.start_method import choose_start_method, pause_collector

    logger = plugin_logger(__name__)
    try:
        decision = decide()
    except Exception:
        # vLLM drops what a plugin raises here, and would serve on another device.
        logger.exception("trnport cannot tell whether to run, so vLLM goes on without it")
        raise
    if decision.active:
        logger.debug("trnport is active: %s", decision.reason)
        choose_start_method()
        pause_collector()
        return PLATFORM
    # A plugin that steps aside without a word makes people benchmark the wrong device.
    logger.warning_once("trnport is installed but not active: %s", decision.reason)
    return None


def register_models() -> None:
    """Entry point of ``vllm.general_plugins``: make vLLM's own checks accept our models.

    Does nothing where another platform is active.
    """
    from trnport.adapters.vllm.models import register_where_active

    register_where_active()
