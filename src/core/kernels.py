# SPDX-License-Identifier: Apache-2.0
"""Operators by name: list them, and replace some of a set with others."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from trnport.core.errors import ConfigError
from trnport.core.ports.kernels import Kernels

PREFILL_OPERATORS = frozenset({"prefill_attention", "prefill_attention_with_prior"})
"""Those of which a chunk with several requests is made where a set has nothing better."""


def operator_names() -> tuple[str, ...]:
    """Names of all operators of the Kernels port, sorted."""
    return tuple(sorted(Kernels.__abstractmethods__))


def with_operator(base: Kernels, **operators: Callable[..., Any]) -> Kernels:
    """A set of operators like ``base``, with some replaced by name.

    An operator of another set is one of its bound methods::

        with_operator(TorchCpuKernels(), decode_attention=OtherKernels().decode_attention)

    The parts are called directly, so the result costs nothing per call. Its name lists what
    was replaced, such as "torch_cpu+decode_attention:my_function".

    Args:
        base: Supplies every operator that is not replaced; it is left as it is.
        operators: Operator name to a callable with that operator's parameters. Those before
            the ``*`` are passed in order, so they may have other names.

    Raises:
        ConfigError: No such operator, or a callable that does not take its parameters.
    """
    for name, function in operators.items():
        _check_operator(name, function)
    parts = {name: getattr(base, name) for name in operator_names()} | operators
    labels = [f"{name}:{_label(function)}" for name, function in operators.items()]
    members: dict[str, Any] = {name: staticmethod(part) for name, part in parts.items()}
    members["pack"] = staticmethod(functools.partial(_pack_for_owner, parts))
    if not operators.keys() & PREFILL_OPERATORS:
        members["packed_prefill_attention"] = staticmethod(base.packed_prefill_attention)
    composed = type("ComposedKernels", (Kernels,), {**members, "__doc__": with_operator.__doc__})
    kernels: Kernels = composed()
    kernels.name = "+".join([base.name, *labels])
    return kernels


def _pack_for_owner(
    parts: Mapping[str, Callable[..., Any]], operator: str, weight: Tensor
) -> Tensor:
    owner = getattr(parts[operator], "__self__", None)
    return owner.pack(operator, weight) if isinstance(owner, Kernels) else weight


def _check_operator(name: str, function: Callable[..., Any]) -> None:
    known = operator_names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise ConfigError(f"no operator is called {name!r}; the nearest is {near!r} of {known}")
    if not callable(function):
        raise ConfigError(f"the replacement of {name!r} is not callable: {function!r}")
    try:
        offered = inspect.signature(function)
    except ValueError:
        return  # some builtins do not tell their parameters
    _, *wanted = inspect.signature(getattr(Kernels, name)).parameters.values()
    by_name = [p.name for p in wanted if p.kind is p.KEYWORD_ONLY]
    in_order = [p.name for p in wanted if p.kind is not p.KEYWORD_ONLY]
    try:
        offered.bind(*in_order, **dict.fromkeys(by_name))
    except TypeError as error:
        parameters = ", ".join([*in_order, "*", *by_name] if by_name else in_order)
        raise ConfigError(
            f"the replacement of {name!r} does not take ({parameters}): {error}"
        ) from None


def _label(function: Callable[..., Any]) -> str:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, Kernels):
        return owner.name
    return getattr(function, "__name__", type(function).__name__)
