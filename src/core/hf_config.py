# SPDX-License-Identifier: Apache-2.0
"""Read a Hugging Face configuration without guessing.

A field that a model does not know could change its mathematics (soft-capping, sliding
windows, multipliers), and a model that ignores it generates text that is almost right. So
every field is either read, listed as harmless, neutral, or refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trnport.core.errors import UnsupportedConfigError

HARMLESS_FIELDS = frozenset(
    {
        # Where the file came from and what wrote it.
        "_name_or_path", "_commit_hash", "architectures", "auto_map", "model_type",
        "transformers_version", "transformers.js_config", "is_llama_config",
        # Numeric dtype is chosen by the caller.
        "dtype", "torch_dtype",
        # Training only.
        "attention_dropout", "initializer_range", "pretraining_tp", "problem_type",
        "id2label", "label2id", "use_cache", "chunk_size_feed_forward",
        # How Transformers runs and returns things.
        "return_dict", "output_attentions", "output_hidden_states", "attn_implementation",
        "_attn_implementation", "_attn_implementation_autoset", "experts_implementation",
        "_experts_implementation", "_attn_implementation_internal",
        # What becomes of hidden states afterwards: embeddings that may be cut short.
        "is_matryoshka", "matryoshka_dimensions",
        # Special tokens and generation, which the serving layer reads.
        "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
        "unk_token_id", "generation_config", "max_length", "max_new_tokens",
    }
)  # fmt: skip
"""Fields of any decoder that never change its logits."""


def as_mapping(hf_config: Any) -> Mapping[str, Any]:
    """A configuration object, or its dictionary, as a mapping of its fields."""
    if isinstance(hf_config, Mapping):
        return hf_config
    fields: Mapping[str, Any] = hf_config.to_dict()
    return fields


def require(config: Mapping[str, Any], name: str) -> Any:
    """A field that has no safe default.

    Raises:
        UnsupportedConfigError: It is absent or null.
    """
    if config.get(name) is None:
        raise UnsupportedConfigError(f"config.json lacks {name!r}; add it, it cannot be guessed")
    return config[name]


def refuse_unknown_fields(config: Mapping[str, Any], known: Collection[str], model: str) -> None:
    """Refuse fields that are neither known, harmless nor neutral (null, false, 0, empty).

    Raises:
        UnsupportedConfigError: Names every such field and its value.
    """
    unknown = {
        name: value
        for name, value in config.items()
        if name not in known and name not in HARMLESS_FIELDS and value
    }
    if unknown:
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(unknown.items()))
        raise UnsupportedConfigError(
            f"{model} does not implement these fields of config.json: {listed}. They could "
            "change the model's output. If one does not, set it to null (with vLLM: "
            "--hf-overrides '{\"" + min(unknown) + "\": null}')."
        )
