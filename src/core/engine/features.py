# SPDX-License-Identifier: Apache-2.0
"""What an engine's programs do beside choosing the next token; fixed when it starts."""

from __future__ import annotations

from typing import Self

import attrs
import torch

from trnport.core.config import NeuronConfig


@attrs.frozen
class EmbedsSpec:
    """Shape of the embeddings that requests may bring along.

    Attributes:
        hidden_size: Their width.
        dtype: The model's, to which they are cast.
    """

    hidden_size: int
    dtype: torch.dtype


@attrs.frozen
class Features:
    """Decides which programs exist and what they return.

    Attributes:
        generates: Tokens are generated: there are decode programs. Otherwise requests end with
            their prompt, as embeddings of texts do.
        scores_prompts: Logits of prompt tokens can be asked for: prefill programs return hidden
            states, and one more program turns rows of them into logits.
        prompt_embeds: Every program takes embeddings beside token ids; None when it does not.
    """

    generates: bool = True
    scores_prompts: bool = False
    prompt_embeds: EmbedsSpec | None = None

    @classmethod
    def from_config(cls, config: NeuronConfig) -> Self:
        """The features of a generating engine with these settings."""
        return cls(scores_prompts=config.enable_prompt_logprobs)

    @property
    def returns_hidden_states(self) -> bool:
        """Whether prefill programs return hidden states."""
        return self.scores_prompts or not self.generates
