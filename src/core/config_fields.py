# SPDX-License-Identifier: Apache-2.0
"""Kinds of settings and their checks, from which ``NeuronConfig`` is made."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, NoReturn

import attrs

from trnport.core.errors import ConfigError
from trnport.core.sampling_config import OnDeviceSamplingConfig


def fail(name: str, value: object, rule: str) -> NoReturn:
    """Refuse the value of a key.

    Raises:
        ConfigError: Always; the message has name, value and rule.
    """
    raise ConfigError(f"neuron_config.{name}={value!r}: {rule}")


def as_json(*values: object) -> str:
    """Values as a user spells them in JSON."""
    return " or ".join(map(json.dumps, values))


def to_tuple(value: Any) -> Any:
    """A list as a tuple, anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def to_on_device_sampling(value: Any) -> Any:
    """A dictionary as the settings it spells."""
    return OnDeviceSamplingConfig.of(value)


def ascending(smallest: int) -> Any:
    """Validator of a list of bucket sizes that starts at ``smallest`` or above."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, tuple) or not value or not all(type(v) is int for v in value):
            fail(field.name, value, "must be a non-empty list of integers")
        if value[0] < smallest:
            fail(field.name, list(value), f"buckets must be at least {smallest}")
        if any(a >= b for a, b in pairwise(value)):
            fail(field.name, list(value), "buckets must be strictly ascending")

    return check


def at_least(smallest: int) -> Any:
    """Validator of a number."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if type(value) is not int or value < smallest:
            fail(field.name, value, f"must be an integer of at least {smallest}")

    return check


def one_of(*names: str) -> Any:
    """Validator of a setting with a few names to choose from."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if value not in names:
            fail(field.name, value, f"must be one of {', '.join(map(repr, names))}")

    return check


def boolean(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    """Validator of a switch; 0 and 1 are none."""
    if type(value) is not bool:
        fail(field.name, value, "must be true or false")


def sets_of_kernels(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    """Validator of the name of a set of kernels."""
    # Which sets exist is known to the composition root alone, so only the type is checked here.
    if not isinstance(value, str) or not value:
        fail(field.name, value, "must be the name of a set of kernels, such as 'torch_cpu'")


def only(*neutral: object) -> Any:
    """Validator of a setting whose effect is not implemented: neutral values only."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        # 0 == False and 1 == True, so the type counts.
        if not any(type(value) is type(n) and value == n for n in neutral):
            fail(
                field.name,
                value,
                f"not implemented in this release; leave it out or set it to {as_json(*neutral)}",
            )

    return check


def option(
    kind: str,
    doc: str,
    valid: str,
    validator: Any,
    *,
    default: Any,
    default_doc: str = "",
    converter: Any = to_tuple,
) -> Any:
    """An implemented setting."""
    metadata = {
        "type": kind,
        "doc": doc,
        "valid": valid,
        "default": default_doc,
        "since": "0.33.0.0",
        "implemented": True,
    }
    return attrs.field(default=default, converter=converter, validator=validator, metadata=metadata)


def planned(kind: str, doc: str, *neutral: object) -> Any:
    """A setting that is known by name only; its first neutral value is the default."""
    metadata = {
        "type": kind,
        "doc": doc,
        "valid": as_json(*neutral),
        "default": "",
        "since": "",
        "implemented": False,
    }
    return attrs.field(default=neutral[0], validator=only(*neutral), metadata=metadata)
