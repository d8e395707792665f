# SPDX-License-Identifier: Apache-2.0
"""Run suites that say nothing about a compiler on one: ``pytest --compiler=inductor``.

Where a test leaves ``compiler`` open it gets that one, in this process and in servers it starts,
and one bucket of each kind where it leaves those open, since each costs a compilation. Programs
are shared by the whole session.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from trnport.core.config import NeuronConfig

_CACHE = "TRNPORT_CACHE_DIR"
_ADDITIONAL = "--additional-config"
_LIMITS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
_chosen = "eager"


def choose(compiler: str) -> None:
    """Make a compiler the default of all settings."""
    global _chosen  # noqa: PLW0603  # pytest is configured once
    _chosen = compiler
    original = NeuronConfig.from_dict.__func__  # type: ignore[attr-defined]

    def from_dict(cls: Any, values: Any, **limits: Any) -> NeuronConfig:
        config: NeuronConfig = original(cls, {**_defaults(values, **limits), **values}, **limits)
        return config

    NeuronConfig.from_dict = classmethod(from_dict)  # type: ignore[assignment, method-assign]


def _defaults(
    values: Any, *, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int, **_: Any
) -> dict[str, Any]:
    longest = max_model_len * values.get("max_prefills_per_batch", 1)
    return {
        "compiler": _chosen,
        "num_seqs_buckets": [max_num_seqs],
        "num_batched_tokens_buckets": [min(max_num_batched_tokens, longest)],
    }


def unless_compiled(**buckets: list[int]) -> dict[str, list[int]]:
    """Several buckets, where each one costs nothing."""
    return buckets if _chosen == "eager" else {}


def server_options(options: list[str]) -> list[str]:
    """All options of a server, which may bring settings of their own, and the compiler."""
    if _chosen == "eager":
        return options
    given = dict(option.split("=", 1) for option in options if "=" in option)
    limits = {name: int(given[f"--{name.replace('_', '-')}"]) for name in _LIMITS}
    settings = json.loads(given.get(_ADDITIONAL, "{}"))
    given_settings = settings.get("neuron_config", {})
    settings["neuron_config"] = {**_defaults(given_settings, **limits), **given_settings}
    kept = (option for option in options if not option.startswith(f"{_ADDITIONAL}="))
    return [*kept, f"{_ADDITIONAL}={json.dumps(settings)}"]


@contextmanager
def nothing_is_compiled(compiler: Any) -> Iterator[None]:
    """Check that a compiler whose programs are warm makes no other one."""
    if not hasattr(compiler, "num_compiled"):  # its package takes seconds to import
        yield
        return
    before = compiler.num_cached, compiler.num_compiled
    assert sum(before), "no program was compiled before the first request"
    yield
    assert (compiler.num_cached, compiler.num_compiled) == before


@pytest.fixture(scope="session", autouse=True)
def shared_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled programs of this session, apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        if _CACHE not in os.environ:
            patch.setenv(_CACHE, str(tmp_path_factory.mktemp("programs")))
        yield
