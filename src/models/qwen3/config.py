# SPDX-License-Identifier: Apache-2.0
"""What Qwen3 needs to know from config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trnport.core.errors import UnsupportedConfigError
from trnport.core.hf_config import as_mapping, refuse_unknown_fields, require
from trnport.core.nn.decoder_config import (
    SHARED_FIELDS,
    DecoderConfig,
    checked_windows,
    read_shared_fields,
)

HEAD_DIM = 128
"""Size of a head where config.json gives none, whatever the width of the model."""

FULL, SLIDING = "full_attention", "sliding_attention"

OWN_FIELDS = frozenset(
    {"attention_bias", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
)


class Qwen3Config(DecoderConfig):
    """Sizes and switches of one dense Qwen3."""

    @classmethod
    def from_hf(cls, hf_config: Any) -> Qwen3Config:
        """Read a Transformers configuration, or the dictionary in config.json.

        Raises:
            UnsupportedConfigError: A field is missing, or asks for mathematics that this
                model does not implement.
        """
        config = as_mapping(hf_config)
        refuse_unknown_fields(config, SHARED_FIELDS | OWN_FIELDS, "Qwen3")
        return cls(
            **read_shared_fields(config, "Qwen3", default_head_dim=HEAD_DIM),
            attention_bias=bool(config.get("attention_bias", False)),
            sliding_windows=checked_windows(_sliding_windows(config)),
        )


def _sliding_windows(config: Mapping[str, Any]) -> list[int | None]:
    """The window of each layer.

    ``layer_types`` decides. Files without it have ``max_window_layers`` layers of full
    attention at the bottom, and ``use_sliding_window`` switches windows on at all.
    """
    layers = require(config, "num_hidden_layers")
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    types = config.get("layer_types")
    if types is None:
        full = layers if window is None else require(config, "max_window_layers")
        types = [FULL if i < full else SLIDING for i in range(layers)]
    _check_types(types, layers)
    if SLIDING in types and window is None:
        raise UnsupportedConfigError(
            f"layer_types names {SLIDING!r}, but there is no window: "
            f"use_sliding_window={config.get('use_sliding_window')!r}, "
            f"sliding_window={config.get('sliding_window')!r}; set both"
        )
    return [window if kind == SLIDING else None for kind in types]


def _check_types(types: Sequence[str], layers: int) -> None:
    if len(types) != layers:
        raise UnsupportedConfigError(
            f"layer_types has {len(types)} entries for num_hidden_layers={layers}; make them equal"
        )
    unknown = sorted(set(types) - {FULL, SLIDING})
    if unknown:
        raise UnsupportedConfigError(
            f"layer_types names {', '.join(unknown)}; Qwen3 here has {FULL} and {SLIDING}"
        )
