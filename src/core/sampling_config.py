# SPDX-License-Identifier: Apache-2.0
"""The setting ``on_device_sampling_config``: sampling as part of the program."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Self

import attrs

from trnport.core.errors import ConfigError

_KEY = "neuron_config.on_device_sampling_config"


def _fail(name: str, value: object, rule: str) -> NoReturn:
    raise ConfigError(f"{_KEY}.{name}={value!r}: {rule}")


def _flag(value: object) -> object:
    """JSON has booleans, but files from the wild spell them as strings."""
    spelled = {"true": True, "false": False}
    return spelled.get(value.lower(), value) if isinstance(value, str) else value


def _real(value: object) -> object:
    return _parsed(float, value)


def _integer(value: object) -> object:
    return _parsed(int, value)


def _parsed(parse: Callable[[str], float], value: object) -> object:
    try:
        return parse(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _is_flag(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if type(value) is not bool:
        _fail(field.name, value, "must be true or false")


def _in_range(lowest: float, highest: float, rule: str, *kinds: type) -> Any:
    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        # Written so that NaN fails as well; True is an int to Python and no number to a user.
        if type(value) not in kinds or not lowest <= value <= highest:
            _fail(field.name, value, f"must be {rule}")

    return check


@attrs.frozen(kw_only=True)
class OnDeviceSamplingConfig:
    """How programs sample, and what requests get that do not say.

    Attributes:
        all_greedy: Programs only take the largest logit. Smaller and quicker than programs
            that can also draw.
        temperature: Default of requests that do not name one; 0 is greedy. None leaves the
            model's own default.
        top_k: Likewise; 0 and -1 keep all.
        top_p: Likewise.

    Raises:
        ConfigError: A value is out of range, or ``all_greedy`` contradicts a temperature.
    """

    all_greedy: bool = attrs.field(default=False, converter=_flag, validator=_is_flag)
    temperature: float | None = attrs.field(
        default=None,
        converter=_real,
        validator=_in_range(0, 2, "a number from 0 to 2, or null", int, float),
    )
    top_k: int | None = attrs.field(
        default=None,
        converter=_integer,
        validator=_in_range(-1, math.inf, "an integer of at least -1, or null", int),
    )
    top_p: float | None = attrs.field(
        default=None,
        converter=_real,
        validator=_in_range(1e-30, 1, "a number above 0, at most 1, or null", int, float),
    )

    def __attrs_post_init__(self) -> None:
        if self.all_greedy and self.temperature:
            _fail("temperature", self.temperature, "contradicts all_greedy; use 0 or leave it out")

    @classmethod
    def of(cls, value: object) -> Self | None:
        """Read the setting; None stands for sampling on the host.

        Raises:
            ConfigError: Not a dictionary, or with an unknown key.
        """
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(f"{_KEY}={value!r}: must be a dictionary or null")
        known = [field.name for field in attrs.fields(cls)]
        for key in value:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys are {known}"
                raise ConfigError(f"unknown key {key!r} in {_KEY}; {hint}")
        return cls(**value)

    @property
    def defaults(self) -> dict[str, float]:
        """Sampling parameters of a request that names none."""
        given = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        if self.all_greedy:
            given["temperature"] = 0.0
        return {name: value for name, value in given.items() if value is not None}
