# SPDX-License-Identifier: Apache-2.0
"""Say what is wrong with a key that ``neuron_config`` does not have."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from trnport.core.errors import ConfigError

_VISION_KEYS = frozenset(
    {
        "num_vision_tokens_buckets",
        "vision_attention_block_size",
        "max_vision_seq_len",
        "tp_size",
        "dp_size",
        "encoder_cache_num_blocks",
        "encoder_cache_min_hold_time_ms",
    }
)
_PROFILER_KEYS = frozenset(
    {"activities", "neuron_cores", "output_dir", "sys_trace_max_events_per_nc"}
)

# Other dictionaries of additional_config, whose keys people put into this one by mistake.
_SIBLING_NAMESPACES = MappingProxyType(
    {"vision_neuron_config": _VISION_KEYS, "neuron_profiler": _PROFILER_KEYS}
)

_SIBLING_SWITCH = "mm_language_model_only"


def check_known(values: object, known: Sequence[str]) -> None:
    """Check the keys of a user's dictionary.

    Raises:
        ConfigError: It is none, or a key is unknown; the message names the nearest one.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"neuron_config must be a dictionary, not {values!r}")
    for key in values:
        if key not in known:
            raise ConfigError(_unknown_key(str(key), known))


def _unknown_key(key: str, known: Sequence[str]) -> str:
    message = f"unknown key {key!r} in neuron_config"
    if key == _SIBLING_SWITCH or key in _SIBLING_NAMESPACES:
        return f"{message}; it belongs next to neuron_config in additional_config, not inside"
    for namespace, keys in _SIBLING_NAMESPACES.items():
        if key in keys:
            return f"{message}; it belongs to additional_config[{namespace!r}]"
    nearest = difflib.get_close_matches(key, known, n=1)
    if nearest:
        return f"{message}; did you mean {nearest[0]!r}?"
    return f"{message}; known keys are {', '.join(known)}"
