# SPDX-License-Identifier: Apache-2.0
"""RoPE settings of one kind of layer, read from any spelling of a Hugging Face configuration.

Three spellings exist. Old files hold ``rope_theta`` and, when positions are scaled, a
dictionary ``rope_scaling``. Transformers 5 writes one dictionary ``rope_parameters`` with
everything in it, or one such dictionary per layer type. A value that two places give must be
the same in both: a wrong base or factor does not fail, it makes long answers bad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import attrs

from trnport.core.errors import ConfigError, UnsupportedConfigError

_COMMON_KEYS = frozenset({"rope_type", "rope_theta", "partial_rotary_factor"})

_REQUIRED_KEYS = MappingProxyType(
    {
        "default": frozenset(),
        "linear": frozenset({"factor"}),
        "dynamic": frozenset({"factor"}),
        "yarn": frozenset({"factor"}),
        "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
        "longrope": frozenset({"short_factor", "long_factor"}),
        "proportional": frozenset(),
    }
)

_OPTIONAL_KEYS = MappingProxyType(
    {
        "yarn": frozenset(
            {
                "original_max_position_embeddings",
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
            }
        ),
        "llama3": frozenset({"original_max_position_embeddings"}),
        "longrope": frozenset({"original_max_position_embeddings", "attention_factor", "factor"}),
        "proportional": frozenset({"factor"}),
    }
)

ROPE_TYPES = tuple(_REQUIRED_KEYS)
"""Every ``rope_type`` that is implemented."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _positive(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    if not _is_number(value) or value <= 0:
        raise ConfigError(f"RoPE parameter {field.name}={value!r} must be a positive number")


def _not_negative(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (not _is_number(value) or value < 0):
        raise ConfigError(f"RoPE parameter {field.name}={value!r} must be a number, 0 or more")


def _positive_int(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 1:
        raise ConfigError(f"RoPE parameter {field.name}={value!r} must be an integer above 1")


def _positive_numbers(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, tuple) or not all(_is_number(v) and v > 0 for v in value):
        raise ConfigError(f"RoPE parameter {field.name} must be a list of positive numbers")


def _known_type(_: object, __: object, value: Any) -> None:
    if value not in ROPE_TYPES:
        raise UnsupportedConfigError(
            f"rope_type={value!r} is not implemented; known types are {', '.join(ROPE_TYPES)}"
        )


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_optional_positive = attrs.validators.optional(_positive)


@attrs.frozen(kw_only=True)
class RopeParameters:
    """How the rotation angles of one kind of layer follow from positions.

    Attributes:
        rope_theta: Base of the geometric series of wavelengths.
        rope_type: One of :data:`ROPE_TYPES`.
        partial_rotary_factor: Share of the head's dimensions that is rotated, in (0, 1].
        factor: How many times longer the sequences are than in pre-training.
        original_max_position_embeddings: Longest sequence of pre-training, in tokens.
        attention_factor: Multiplies cos and sin; derived when None (yarn, longrope).
        beta_fast: Rotations over the original length above which a dimension keeps its
            frequency (yarn).
        beta_slow: Rotations below which a dimension is fully interpolated (yarn).
        mscale: Numerator of the derived attention factor, with ``mscale_all_dim`` (yarn).
        mscale_all_dim: Its denominator (yarn).
        truncate: Whether the ramp between the two betas starts and ends at whole
            dimensions (yarn).
        low_freq_factor: Original length over the wavelength beyond which frequencies are
            divided by ``factor`` (llama3).
        high_freq_factor: Original length over the wavelength below which they are kept
            (llama3).
        short_factor: Divisor of each frequency up to the original length (longrope).
        long_factor: Divisor of each frequency beyond it (longrope).

    Raises:
        ConfigError: A value is out of range, or one that the type needs is missing.
        UnsupportedConfigError: The type is unknown.
    """

    rope_theta: float = attrs.field(validator=_positive)
    rope_type: str = attrs.field(default="default", validator=_known_type)
    partial_rotary_factor: float = attrs.field(default=1.0, validator=_positive)
    factor: float | None = attrs.field(default=None, validator=_optional_positive)
    original_max_position_embeddings: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_positive_int)
    )
    attention_factor: float | None = attrs.field(default=None, validator=_optional_positive)
    beta_fast: float = attrs.field(default=32.0, validator=_positive)
    beta_slow: float = attrs.field(default=1.0, validator=_positive)
    mscale: float | None = attrs.field(default=None, validator=_not_negative)
    mscale_all_dim: float | None = attrs.field(default=None, validator=_not_negative)
    truncate: bool = attrs.field(default=True, validator=attrs.validators.instance_of(bool))
    low_freq_factor: float = attrs.field(default=1.0, validator=_positive)
    high_freq_factor: float = attrs.field(default=4.0, validator=_positive)
    short_factor: tuple[float, ...] = attrs.field(
        default=(), converter=_list_to_tuple, validator=_positive_numbers
    )
    long_factor: tuple[float, ...] = attrs.field(
        default=(), converter=_list_to_tuple, validator=_positive_numbers
    )

    def __attrs_post_init__(self) -> None:
        if self.partial_rotary_factor > 1:
            raise ConfigError(
                f"partial_rotary_factor={self.partial_rotary_factor} must be at most 1"
            )
        if self.factor is None and self.rope_type in ("linear", "dynamic", "llama3"):
            raise ConfigError(f"rope_type={self.rope_type!r} needs a number for 'factor'")
        if self.rope_type == "yarn" and self.beta_fast < self.beta_slow:
            raise ConfigError(
                f"beta_fast={self.beta_fast} must not be below beta_slow={self.beta_slow}"
            )
        if self.rope_type == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ConfigError(
                f"high_freq_factor={self.high_freq_factor} must be above "
                f"low_freq_factor={self.low_freq_factor}"
            )

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        layer_type: str | None = None,
        *,
        default_theta: float | None = None,
    ) -> Self:
        """Read ``rope_theta``, ``rope_scaling``, ``rope_parameters`` and what belongs to them.

        Args:
            config: The dictionary in config.json.
            layer_type: Key of a nested ``rope_parameters``, such as "full_attention".
            default_theta: Base to use when the file has none. Give one only where the
                architecture defines it; without one a missing base is an error.

        Raises:
            ConfigError: A needed value is missing or out of range, or two places contradict
                each other.
            UnsupportedConfigError: The type, or a key in its dictionary, is unknown.
        """
        values = _read(config, layer_type)
        rope_type = values["rope_type"]
        _known_type(None, None, rope_type)
        if values.get("rope_theta") is None:
            if default_theta is None:
                raise ConfigError(
                    "rope_theta is in neither the configuration nor its rope_parameters, and "
                    "the architecture defines no default; add it to config.json"
                )
            values["rope_theta"] = default_theta
        _check_keys(values, rope_type)
        # A null in config.json stands for an absent value.
        return cls(**{key: value for key, value in values.items() if value is not None})

    def original_length(self, max_position_embeddings: int) -> int:
        """Longest sequence of pre-training, in tokens; the model's maximum when not given."""
        return self.original_max_position_embeddings or max_position_embeddings

    def scaling_factor(self, max_position_embeddings: int) -> float:
        """The explicit factor; else, for yarn and longrope, the ratio of the two lengths."""
        if self.factor is not None:
            return self.factor
        if self.rope_type in ("yarn", "longrope"):
            return max_position_embeddings / self.original_length(max_position_embeddings)
        return 1.0


def _read(config: Mapping[str, Any], layer_type: str | None) -> dict[str, Any]:
    spellings = [name for name in ("rope_parameters", "rope_scaling") if config.get(name)]
    found = [_complete(name, config[name], layer_type, config) for name in spellings]
    if len(found) == 2:
        first, second = found
        differing = sorted(k for k in first.keys() | second.keys() if first.get(k) != second.get(k))
        if differing:
            raise ConfigError(
                f"rope_parameters and rope_scaling contradict each other in "
                f"{', '.join(differing)}; remove one of the two from config.json"
            )
    return found[0] if found else _complete("rope_parameters", {}, None, config)


def _complete(
    name: str, raw: Any, layer_type: str | None, config: Mapping[str, Any]
) -> dict[str, Any]:
    """One layer type's dictionary with the values that the file keeps beside it."""
    own, siblings = _select_layer(name, raw, layer_type)
    own = _with_rope_type(name, own)
    for key in ("rope_theta", "partial_rotary_factor"):
        own[key] = _inherit(key, own, siblings, config)
    if "original_max_position_embeddings" in _OPTIONAL_KEYS.get(own["rope_type"], ()):
        key = "original_max_position_embeddings"
        # Like Transformers: a checkpoint that was never extended has one length only.
        own[key] = _inherit(key, own, siblings, config) or config.get("max_position_embeddings")
        if own[key] is None:
            raise ConfigError(f"rope_type={own['rope_type']!r} needs {key}; add it to {name}")
    return own


def _select_layer(
    name: str, raw: Any, layer_type: str | None
) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """The dictionary of a layer type, and those of all layer types."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{name} must be a dictionary, not {raw!r}")
    nested = {key: value for key, value in raw.items() if isinstance(value, Mapping)}
    if not nested:
        return raw, [raw]
    flat = sorted(key for key in raw if key not in nested and raw[key] is not None)
    if flat:
        raise ConfigError(
            f"{name} mixes dictionaries per layer type with plain values ({', '.join(flat)}); "
            "move those into each layer type"
        )
    if layer_type not in nested:
        raise ConfigError(
            f"{name} has no dictionary for layer type {layer_type!r}; it has "
            f"{', '.join(sorted(nested))}"
        )
    return nested[layer_type], list(nested.values())


def _with_rope_type(name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: value for key, value in own.items() if key != "type"}
    old, new = own.get("type"), own.get("rope_type")
    if old is not None and new is not None and old != new:
        raise ConfigError(f"{name} says type={old!r} and rope_type={new!r}; remove one of them")
    values["rope_type"] = new or old or "default"
    return values


def _inherit(
    key: str,
    own: Mapping[str, Any],
    siblings: list[Mapping[str, Any]],
    config: Mapping[str, Any],
) -> Any:
    """A value from the layer's dictionary, else from the configuration around it.

    Layer types may override the surrounding value, which then has to be in use in some
    layer: one that nobody uses is a contradiction.
    """
    outer = config.get(key)
    if outer is not None and all(layer.get(key) not in (None, outer) for layer in siblings):
        raise ConfigError(
            f"config.json says {key}={outer!r} at its top level and {own[key]!r} among the RoPE "
            "parameters; remove one of them"
        )
    return outer if own.get(key) is None else own[key]


def _check_keys(values: Mapping[str, Any], rope_type: str) -> None:
    required = _REQUIRED_KEYS[rope_type]
    known = _COMMON_KEYS | required | _OPTIONAL_KEYS.get(rope_type, frozenset())
    missing = sorted(required - values.keys())
    if missing:
        raise ConfigError(f"rope_type={rope_type!r} needs {', '.join(missing)}; add it")
    unknown = sorted(key for key in values.keys() - known if values[key] is not None)
    if unknown:
        raise UnsupportedConfigError(
            f"rope_type={rope_type!r} does not know {', '.join(unknown)}; it knows "
            f"{', '.join(sorted(known))}"
        )
