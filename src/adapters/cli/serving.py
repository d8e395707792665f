# SPDX-License-Identifier: Apache-2.0
"""Whether vLLM would serve on trnport here, and what stands in the way."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import attrs

from trnport.adapters.cli.metrics import inspect_metrics
from trnport.core.errors import TrnportError

KNOWN_VARIABLES = (
    "TRNPORT_CACHE_DIR",
    "TRNPORT_DEVICE",
    "TRNPORT_LOG_FORMAT",
    "TRNPORT_METRICS_DIR",
    "TRNPORT_SHARED_CACHE_DIR",
)
"""Environment variables of ours."""

PLUGINS = MappingProxyType(
    {
        "trnport": "vllm.platform_plugins",
        "trnport_models": "vllm.general_plugins",
    }
)
"""Our entry points and their groups."""

REQUIRED = ("torch", "transformers", "safetensors", "vllm")
"""Packages without which nothing is served."""


@attrs.frozen
class Serving:
    """Whether ``vllm serve`` would run on trnport.

    Attributes:
        plugins: Our entry points that are registered.
        active: Whether vLLM would run on trnport.
        reason: Why, a clause.
        metrics: Where the workers' metrics would go, a clause.
        problems: What keeps a server on CPU from starting, each with what to do about it.
        warnings: What may surprise.
    """

    plugins: tuple[str, ...]
    active: bool
    reason: str
    metrics: str
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def inspect_serving(environment: Mapping[str, str]) -> Serving:
    """Ask the installed packages and the vLLM adapter.

    Args:
        environment: The process's environment variables. The adapter reads its own ones from
            the process itself.
    """
    plugins, missing = registered_plugins(), list(_missing_packages())
    # Without the packages there is nobody to ask.
    active, reason, refusals = (False, "", []) if missing else _decide()
    metrics = inspect_metrics(environment)
    obstacles = [*missing, *_missing_plugins(plugins), *_switched_off(environment)]
    return Serving(
        plugins=plugins,
        active=active and not obstacles,
        reason=obstacles[0] if obstacles else reason,
        metrics=metrics.folder,
        problems=(*obstacles, *refusals, *metrics.problems),
        warnings=(
            *unknown_variables(environment),
            *_rivals(environment),
            *metrics.warnings,
        ),
    )


def registered_plugins() -> tuple[str, ...]:
    """Our entry points that the installed packages declare."""
    return tuple(
        name
        for name, group in PLUGINS.items()
        if name in importlib.metadata.entry_points(group=group).names
    )


def unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """A warning for each TRNPORT_* variable that nothing reads."""
    for name in sorted(environment):
        if name.startswith("TRNPORT_") and name not in KNOWN_VARIABLES:
            near = difflib.get_close_matches(name, KNOWN_VARIABLES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(KNOWN_VARIABLES)}"
            yield f"{name} is set and nothing reads it; {hint}"


def _missing_packages() -> Iterator[str]:
    for name in REQUIRED:
        if importlib.util.find_spec(name) is None:
            extra = "[vllm]" if name == "vllm" else ""
            yield (
                f"{name} is not installed; run `make setup` in a clone, or `pip install "
                f"'trnport{extra}'`"
            )


def _missing_plugins(registered: tuple[str, ...]) -> Iterator[str]:
    absent = [name for name in PLUGINS if name not in registered]
    if absent:
        yield (
            f"vLLM cannot find the entry points {', '.join(absent)}; install trnport with pip "
            "rather than by a path"
        )


def _switched_off(environment: Mapping[str, str]) -> Iterator[str]:
    allowed = environment.get("VLLM_PLUGINS")
    absent = [] if allowed is None else [p for p in PLUGINS if p not in allowed.split(",")]
    if absent:
        yield (
            f"VLLM_PLUGINS={allowed!r} keeps vLLM from loading {', '.join(absent)}; add them, or "
            "unset it"
        )
    if environment.get("VLLM_TARGET_DEVICE", "").lower() == "cpu":
        yield "VLLM_TARGET_DEVICE=cpu makes vLLM ignore every platform plugin; unset it"


def _rivals(environment: Mapping[str, str]) -> Iterator[str]:
    names = importlib.metadata.entry_points(group=PLUGINS["trnport"]).names - set(PLUGINS)
    if names and "VLLM_PLUGINS" not in environment:
        yield (
            f"other platform plugins are installed: {', '.join(sorted(names))}. vLLM refuses to "
            f"start when two are active; set VLLM_PLUGINS={','.join(PLUGINS)}"
        )


def _decide() -> tuple[bool, str, list[str]]:
    """Whether vLLM would choose trnport, why, and what keeps it from starting."""
    try:
        from trnport import bootstrap

        active, reason = bootstrap.vllm_decision()
        if not active:
            return False, reason, [reason]
        return True, reason, list(_refusals(bootstrap.check_vllm_device))
    except Exception as error:  # noqa: BLE001  # a damaged installation can raise anything
        message = f"importing trnport or vLLM fails with {type(error).__name__}: {error}"
        return False, message, [f"{message}; run `make setup` again"]


def _refusals(check: Callable[[], None]) -> Iterator[str]:
    try:
        check()
    except TrnportError as error:
        yield str(error)
