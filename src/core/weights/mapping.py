# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint tensors fill which parameter, and which are left aside on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import attrs

from trnport.core.errors import ConfigError

Keys = str | Sequence[str]


def _as_tuple(keys: Keys) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else tuple(keys)


def _key_tuples(sources: Mapping[str, Keys]) -> dict[str, tuple[str, ...]]:
    return {name: _as_tuple(keys) for name, keys in sources.items()}


@attrs.frozen
class WeightMapping:
    """Parameter names, the checkpoint keys behind each, and the keys nobody wants.

    Attributes:
        sources: Name of a parameter (or of a buffer that is stored) to its checkpoint key,
            or to its keys in the order that its loader takes them. One key may serve two
            parameters, as with tied embeddings.
        ignored: Patterns of checkpoint keys that the model does not use. A pattern is
            compared component by component between the dots: ``*`` stands for one or more
            whole components, anything else must be equal. ``*.rotary_emb.inv_freq``
            ignores ``layers.0.rotary_emb.inv_freq`` but not ``layers.0.my_rotary_emb.inv_freq``.
    """

    sources: dict[str, tuple[str, ...]] = attrs.field(converter=_key_tuples)
    ignored: tuple[str, ...] = attrs.field(default=(), converter=_as_tuple)

    def is_ignored(self, key: str) -> bool:
        """Whether a pattern in ``ignored`` covers this checkpoint key."""
        return any(_matches(pattern.split("."), key.split(".")) for pattern in self.ignored)

    def merged(self, other: Self | Mapping[str, Keys]) -> WeightMapping:
        """Both mappings in one.

        Raises:
            ConfigError: Both name the same parameter; which one would win?
        """
        if not isinstance(other, WeightMapping):
            other = type(self)(other)
        twice = sorted(self.sources.keys() & other.sources.keys())
        if twice:
            raise ConfigError(f"parameters mapped twice: {', '.join(twice)}")
        return WeightMapping(self.sources | other.sources, self.ignored + other.ignored)


def _matches(pattern: list[str], key: list[str]) -> bool:
    if not pattern or not key:
        return pattern == key
    if pattern[0] == "*":
        return any(_matches(pattern[1:], key[used:]) for used in range(1, len(key) + 1))
    return pattern[0] == key[0] and _matches(pattern[1:], key[1:])


def expand_layers(
    templates: Mapping[str, Keys], layers: int | Iterable[int]
) -> dict[str, tuple[str, ...]]:
    """Write out entries that hold for every layer.

    Args:
        templates: Like :attr:`WeightMapping.sources`, with ``{layer}`` in every name and key.
        layers: Number of layers, or their indices.

    Raises:
        ConfigError: A name or a key has no ``{layer}``, so that all layers would share it.
    """
    indices = list(range(layers)) if isinstance(layers, int) else list(layers)
    sources = _key_tuples(templates)
    for text in [*sources, *(key for keys in sources.values() for key in keys)]:
        if "{layer}" not in text:
            raise ConfigError(f"no {{layer}} in the layer template {text!r}")
    return {
        name.replace("{layer}", str(i)): tuple(key.replace("{layer}", str(i)) for key in keys)
        for i in indices
        for name, keys in sources.items()
    }
